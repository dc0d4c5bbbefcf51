//! Inputs that are made from seeds, always the same ones for the same number.

/// The longest input that is made, in bytes.
const INPUT_BYTES_MAX: usize = 2048;
/// Highest number of changes to one input.
const CHANGES_MAX: usize = 6;
/// Bytes and numbers at which parsers change their mind.
const FRAGMENTS: [&[u8]; 24] = [
    b"\r\n",
    b"\0",
    b"\xff",
    b"%2e",
    b"%2F",
    b"../",
    b"//",
    b"{}",
    b"\"",
    b"-1",
    b"0",
    b"+1",
    b"65535",
    b"65536",
    b"4294967296",
    b"999999999999999",
    b"1000000000000000",
    b"9223372036854775807",
    b"-9223372036854775808",
    b"18446744073709551615",
    b"99999999999999999999",
    b"1e999",
    b"null",
    b"\xc3\xa9",
];

/// A generator of numbers (SplitMix64).
#[derive(Debug)]
pub(crate) struct Numbers {
    state: u64,
}

impl Numbers {
    pub(crate) fn new(state: u64) -> Self {
        Self { state }
    }

    fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`; 0 where that is 0.
    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next_u64() >> 1).unwrap_or_default() % bound.max(1)
    }
}

/// Makes inputs from seeds.
#[derive(Debug)]
pub(crate) struct Mutator<'s> {
    seeds: &'s [Vec<u8>],
    numbers: Numbers,
}

impl<'s> Mutator<'s> {
    pub(crate) fn new(seeds: &'s [Vec<u8>], numbers: Numbers) -> Self {
        Self { seeds, numbers }
    }

    /// A seed with a few changes.
    pub(crate) fn next_input(&mut self) -> Vec<u8> {
        let mut input = self.seed().to_vec();
        for _ in 0..=self.numbers.below(CHANGES_MAX) {
            self.change(&mut input);
        }
        input.truncate(INPUT_BYTES_MAX);
        input
    }

    fn seed(&mut self) -> &'s [u8] {
        let at = self.numbers.below(self.seeds.len());
        self.seeds.get(at).map(Vec::as_slice).unwrap_or_default()
    }

    fn change(&mut self, input: &mut Vec<u8>) {
        let at = self.numbers.below(input.len() + 1);
        match self.numbers.below(7) {
            0 => {
                if let Some(byte) = input.get_mut(at) {
                    *byte ^= 1 << self.numbers.below(8);
                }
            }
            1 => input.insert(at, (self.numbers.next_u64() & 0xff) as u8),
            2 => {
                let range = self.range(input);
                input.drain(range);
            }
            3 => {
                let range = self.range(input);
                let piece = input[range].to_vec();
                input.splice(at..at, piece);
            }
            4 => {
                let other = self.seed();
                let piece = &other[self.range(other)];
                input.splice(at..at, piece.iter().copied());
            }
            5 => {
                let other = self.seed();
                let piece = &other[self.range(other)];
                let range = self.range(input);
                input.splice(range, piece.iter().copied());
            }
            _ => {
                let fragment = FRAGMENTS[self.numbers.below(FRAGMENTS.len())];
                let end = at + self.numbers.below((input.len() - at).min(4) + 1);
                input.splice(at..end, fragment.iter().copied());
            }
        }
    }

    /// A part of the bytes, mostly a short one.
    fn range(&mut self, bytes: &[u8]) -> std::ops::Range<usize> {
        let start = self.numbers.below(bytes.len() + 1);
        let most = if self.numbers.below(4) == 0 { bytes.len() } else { 8 };
        start..start + self.numbers.below((bytes.len() - start).min(most) + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_number_makes_the_same_inputs() {
        let seeds = [b"*1\r\n$4\r\nPING\r\n".to_vec(), Vec::new(), b"PING".to_vec()];
        let inputs = |number| {
            let mut mutator = Mutator::new(&seeds, Numbers::new(number));
            (0..1000).map(|_| mutator.next_input()).collect::<Vec<_>>()
        };
        assert_eq!(inputs(7), inputs(7));
        assert_ne!(inputs(7), inputs(8));
        assert!(inputs(7).iter().all(|input| input.len() <= INPUT_BYTES_MAX));
    }
}
