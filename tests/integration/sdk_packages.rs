//! The packages of the SDKs: formatted, linted, typed, tested, built and imported, by `check` of
//! each.

/// A test for the package of each language, beside Rust's.
macro_rules! packages {
    ($($language:ident)*) => {$(
        #[test]
        fn $language() {
            fence_tests::scenario::suite::package_check(stringify!($language), &[]);
        }
    )*};
}

packages!(python typescript go);
