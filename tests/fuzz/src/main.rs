//! The long run of a target, under libFuzzer. `tests/fuzz/run` builds and starts it.

#![no_main]

use std::path::Path;
use std::sync::OnceLock;

static TARGET: OnceLock<fn(&[u8])> = OnceLock::new();

libfuzzer_sys::fuzz_target!(
    init: {
        if TARGET.set(prepare()).is_err() {
            panic!("the target is chosen once");
        }
    },
    |input: &[u8]| {
        if let Some(target) = TARGET.get() {
            target(input);
        }
    }
);

/// The target that `FENCE_FUZZ_TARGET` names. Its seeds are written into the folder that
/// `FENCE_FUZZ_SEEDS` names, a file each, where libFuzzer reads them.
#[expect(clippy::disallowed_methods, reason = "libFuzzer has the command line")]
fn prepare() -> fn(&[u8]) {
    let name = std::env::var("FENCE_FUZZ_TARGET").unwrap_or_default();
    let all = [
        access_control::fuzz::TARGETS,
        fence_protocol::fuzz::TARGETS,
        fenced_store::fuzz::TARGETS,
        lock_server::fuzz::TARGETS,
        redis_link::fuzz::TARGETS,
        service_kit::fuzz::TARGETS,
    ];
    let mut targets = all.into_iter().flatten();
    let Some((_, target)) = targets.find(|(known, _)| *known == name) else {
        panic!("there is no target {name:?}");
    };
    if let Ok(folder) = std::env::var("FENCE_FUZZ_SEEDS") {
        for (at, seed) in fence_fuzz::seeds(&name).iter().enumerate() {
            let file = Path::new(&folder).join(format!("seed-{at}"));
            if let Err(error) = std::fs::write(&file, seed) {
                panic!("{} cannot be written: {error}", file.display());
            }
        }
    }
    *target
}
