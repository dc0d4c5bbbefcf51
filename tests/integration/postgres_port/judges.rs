//! Drivers that we did not write judge the port: `tests/drivers/postgres/run`.

use crate::redis_port::judges::{is_there, run};

#[test]
fn psycopg_says_that_it_is_postgresql() {
    run("drivers/postgres/run", "psycopg");
}

#[test]
fn asyncpg_says_that_it_is_postgresql() {
    run("drivers/postgres/run", "asyncpg");
}

#[test]
fn pg8000_says_that_it_is_postgresql() {
    run("drivers/postgres/run", "pg8000");
}

#[test]
fn node_postgres_says_that_it_is_postgresql() {
    if is_there("node", 20) && is_there("npm", 9) {
        run("drivers/postgres/run", "node");
    } else {
        eprintln!("not judged by node-postgres: there is no Node 20 with npm");
    }
}

#[test]
fn postgres_js_says_that_it_is_postgresql() {
    if is_there("node", 20) && is_there("npm", 9) {
        run("drivers/postgres/run", "postgres-js");
    } else {
        eprintln!("not judged by postgres.js: there is no Node 20 with npm");
    }
}

/// The tests of psycopg2, with a token; `FENCE_LONG=1` runs them in other ways, too.
#[test]
fn the_tests_of_psycopg_pass_at_the_port() {
    run("drivers/postgres/run", "psycopg-suite");
}
