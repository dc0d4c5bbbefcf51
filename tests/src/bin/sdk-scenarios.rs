//! `sdk-scenarios LANGUAGE [PART]`: runs the scenarios whose names contain PART with the SDK of one
//! language, as the integration tests do with all of them.
//!
//! The variable `FENCE_DRIVER`, a JSON array, replaces the command of the driver.

use std::process::ExitCode;

use fence_tests::scenario::suite::conforms;

#[tokio::main]
async fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    let Some(language) = words.next() else {
        return report("usage: sdk-scenarios LANGUAGE [PART]", 64);
    };
    match conforms(&language, &words.next().unwrap_or_default()).await {
        Ok(count) => report(&format!("{language}: {count} scenarios passed"), 0),
        Err(failed) => report(&failed, 1),
    }
}

fn report(text: &str, code: u8) -> ExitCode {
    // The reader is gone if this fails.
    let _ = std::io::Write::write_all(&mut std::io::stdout(), format!("{text}\n").as_bytes());
    ExitCode::from(code)
}
