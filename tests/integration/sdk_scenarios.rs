//! Every scenario of `tests/sdk/scenarios` with the SDK of each language.

use fence_tests::scenario::suite::conforms;

macro_rules! languages {
    ($($language:ident)*) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $language() {
            if let Err(failed) = conforms(stringify!($language), "").await {
                panic!("{failed}");
            }
        }
    )*};
}

languages!(rust python python_sync typescript go);
