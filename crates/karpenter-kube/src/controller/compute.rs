//! Long computations on a separate thread.

use std::panic::{AssertUnwindSafe, catch_unwind};

use tokio::runtime::{Handle, RuntimeFlavor};

use super::ReconcileError;

/// Runs `work`, named `what` in errors, on a blocking thread, so that it does not hold up the threads of the runtime.
///
/// A runtime with one thread runs it in place. Nothing else happens meanwhile, so that the result of a simulation in
/// virtual time follows from its seed and not from the speed of the computer.
///
/// # Errors
/// When `work` panics.
pub async fn compute<T: Send + 'static>(
    what: &'static str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, ReconcileError> {
    let result = match Handle::current().runtime_flavor() {
        RuntimeFlavor::CurrentThread => {
            catch_unwind(AssertUnwindSafe(work)).map_err(|_| "it panicked".to_owned())
        }
        _ => tokio::task::spawn_blocking(work)
            .await
            .map_err(|error| error.to_string()),
    };
    result.map_err(|why| ReconcileError::Internal(format!("{what} failed, {why}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panic_in_a_computation_is_an_error() {
        assert_eq!(compute("the sum", || 1 + 1).await.ok(), Some(2));
        let failed = compute("the sum", || std::panic::panic_any("no")).await;
        assert_eq!(
            failed.map_err(|e| e.to_string()),
            Err::<(), _>("the sum failed, it panicked".to_owned())
        );
    }
}
