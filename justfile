# One verb a job; each calls what also runs without just. `just --list`

# Build both servers and `fence`
build:
    cargo build --profile test --workspace --bins --locked

# Format all code
fmt:
    cargo fmt --all

# Lint all code
lint:
    cargo clippy --workspace --all-targets --locked -- -D warnings

# Run the unit tests, conformance in memory and a short simulation
quick:
    tests/run --quick

# Run all tests (17 minutes once it is built), or those of the arguments: just test -- etcd
test *args:
    tests/run {{args}}

# Check everything that a change must pass
ci:
    .ci/run

# Lower the numbers of the tidy table to what is found
tidy:
    FENCE_REGENERATE=1 tests/run -- tidy

# Replay a seed of the simulation: just replay 7
replay seed:
    tests/simulation/run --seed {{seed}}

# Remove each mechanism in turn and expect the simulation to fail
mutants *names:
    tests/simulation/mutants {{names}}

# Fuzz one parser for some seconds: just fuzz resp-requests 600
fuzz target seconds="600":
    tests/fuzz/run {{target}} {{seconds}}

# Run published clients against the Redis port, in full
clients:
    tests/run --clients

# Run the failover campaign, in full
campaign *args:
    tests/run --campaign {{args}}

# Play the demo
demo:
    cargo run --locked -- demo gc-stall
