//! Lets tests take candle's operations on the CPU, as GPUs do.

use std::cell::Cell;

thread_local! {
    static IS_SET: Cell<bool> = const { Cell::new(false) };
}

/// Returns true within [`by_candle`].
pub(super) fn is_set() -> bool {
    IS_SET.get()
}

/// Computes with candle's operations instead of the kernels on this thread.
pub(crate) fn by_candle<T>(compute: impl FnOnce() -> T) -> T {
    struct Reset;
    impl Drop for Reset {
        fn drop(&mut self) {
            IS_SET.set(false);
        }
    }
    IS_SET.set(true);
    let _reset = Reset;
    compute()
}
