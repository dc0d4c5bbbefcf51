//! Time axis of the picture: every event has a column of its own, and what is left of the
//! width is divided by how long things took.

/// The least distance of two events, in pixels.
const COLUMN: f64 = 36.0;
/// The width of a picture with few events, in pixels.
const WIDTH_MIN: f64 = 900.0;
/// Free space at both ends.
const MARGIN: f64 = 22.0;

/// The time axis of one story.
#[derive(Debug)]
pub(super) struct Axis {
    /// Times with their places; both never fall.
    columns: Vec<(u64, f64)>,
    width: f64,
}

impl Axis {
    /// An axis with a column for each of these times, which never fall.
    pub(super) fn new(times: &[u64]) -> Self {
        let gaps = times.len().saturating_sub(1) as f64;
        let width = (gaps * COLUMN * 1.4).max(WIDTH_MIN);
        let total = times.first().zip(times.last()).map_or(0, |(first, last)| last - first);
        let spare = width - 2.0 * MARGIN - gaps * COLUMN;
        let mut columns = Vec::with_capacity(times.len());
        let mut x = MARGIN;
        let mut before = times.first().copied().unwrap_or(0);
        for (at, &time) in times.iter().enumerate() {
            if at > 0 {
                x += COLUMN + spare * (time - before) as f64 / total.max(1) as f64;
            }
            columns.push((time, x));
            before = time;
        }
        Self { columns, width }
    }

    pub(super) fn width(&self) -> f64 {
        self.width
    }

    /// The place of the event with this number.
    pub(super) fn column(&self, number: usize) -> f64 {
        self.columns.get(number).map_or(MARGIN, |(_, x)| *x)
    }

    /// The place of a time: the first column that has it, or between two columns.
    pub(super) fn first(&self, time: u64) -> f64 {
        let next = self.columns.partition_point(|(at, _)| *at < time);
        match self.columns.get(next) {
            Some((at, x)) if *at == time => *x,
            _ => self.between(next, time),
        }
    }

    /// Last column that has the time.
    pub(super) fn last(&self, time: u64) -> f64 {
        let next = self.columns.partition_point(|(at, _)| *at <= time);
        match next.checked_sub(1).and_then(|before| self.columns.get(before)) {
            Some((at, x)) if *at == time => *x,
            _ => self.between(next, time),
        }
    }

    fn between(&self, next: usize, time: u64) -> f64 {
        let before = next.checked_sub(1).and_then(|before| self.columns.get(before));
        match (before, self.columns.get(next)) {
            (Some((from, x)), Some((to, end))) => {
                x + (end - x) * (time - from) as f64 / (to - from).max(1) as f64
            }
            (Some((_, x)), None) => x + MARGIN / 2.0,
            _ => MARGIN / 2.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_never_touch_and_stay_inside() {
        for times in [vec![0, 1, 1, 1, 1500, 1501], vec![7; 60], vec![5], vec![]] {
            let axis = Axis::new(&times);
            let places: Vec<f64> = (0..times.len()).map(|at| axis.column(at)).collect();
            assert!(places.windows(2).all(|two| two[1] - two[0] >= COLUMN - 0.01), "{places:?}");
            assert!(places.iter().all(|x| (0.0..=axis.width()).contains(x)), "{places:?}");
        }
    }

    #[test]
    fn times_between_columns_are_between_them() {
        let axis = Axis::new(&[10, 10, 20, 40]);
        assert!(axis.first(10) < axis.last(10));
        assert!(axis.column(2) < axis.first(30) && axis.first(30) < axis.column(3));
        assert!(axis.first(0) < axis.column(0) && axis.last(99) > axis.column(3));
        assert_eq!(axis.first(20), axis.last(20));
    }

    #[test]
    fn long_times_are_longer() {
        let axis = Axis::new(&[0, 10, 1510, 1520]);
        let gap = |at: usize| axis.column(at + 1) - axis.column(at);
        assert!(gap(1) > 4.0 * gap(0));
    }
}
