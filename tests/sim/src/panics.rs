//! Caught panics: a reconciliation that panics is retried, and is a bug all the same.

use std::cell::RefCell;
use std::sync::Once;

thread_local! {
    static PANICS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// Records the panics of every thread from now on, in addition to the existing hook.
pub fn note() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let print = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let line = info.to_string().replace('\n', " ");
            PANICS.with(|panics| panics.borrow_mut().push(line));
            print(info);
        }));
    });
}

/// Returns the panics of this thread since the last call.
pub(crate) fn taken() -> Vec<String> {
    PANICS.with(|panics| std::mem::take(&mut *panics.borrow_mut()))
}
