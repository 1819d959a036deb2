//! Keeps a value that is replaced while in use: a key whose file is rewritten, a token before its expiry, a certificate.
//!
//! A separate thread checks once a second, and immediately after a server rejected the value. Reading a file or requesting
//! a token in the sending thread was rejected, because that wait would be part of the latencies.

use std::fmt;
use std::sync::{Arc, Condvar, Mutex, PoisonError, RwLock, Weak};
use std::time::Duration;

const LOOK: Duration = Duration::from_secs(1);

/// Number of earlier values that are remembered, so that the scrubber still removes them from texts.
const PAST_MAX: usize = 64;

/// A value that a thread renews. Its `Debug` does not show the value.
pub struct RefreshedValue<T> {
    now: RwLock<Arc<T>>,
    past: Mutex<Vec<Arc<T>>>,
    trouble: Mutex<Option<String>>,
    wake: Arc<Wake>,
}

#[derive(Default)]
struct Wake {
    refused: Mutex<bool>,
    told: Condvar,
}

#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum RefreshReason {
    Due,
    Refused,
}

impl<T> fmt::Debug for RefreshedValue<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Renewed(***)")
    }
}

impl<T: Send + Sync + 'static> RefreshedValue<T> {
    /// Returns a value that never changes.
    pub fn fixed(value: T) -> Arc<RefreshedValue<T>> {
        Arc::new(RefreshedValue {
            now: RwLock::new(Arc::new(value)),
            past: Mutex::default(),
            trouble: Mutex::default(),
            wake: Arc::default(),
        })
    }

    /// Returns a value that `look` renews: `look` returns a new value, `None` if unchanged, or an error. Its thread ends
    /// with the last user of the value.
    pub fn start(
        value: T,
        mut look: impl FnMut(RefreshReason) -> Result<Option<T>, String> + Send + 'static,
    ) -> Arc<RefreshedValue<T>> {
        let renewed = RefreshedValue::fixed(value);
        let (weak, wake) = (Arc::downgrade(&renewed), Arc::clone(&renewed.wake));
        let thread = std::thread::Builder::new().name("renew".into()).spawn(move || {
            loop {
                let why = wake.wait();
                let Some(renewed) = Weak::upgrade(&weak) else { return };
                match look(why) {
                    Ok(None) => *lock(&renewed.trouble) = None,
                    Ok(Some(value)) => renewed.set(value),
                    Err(why) => *lock(&renewed.trouble) = Some(why),
                }
            }
        });
        if let Err(e) = thread {
            *lock(&renewed.trouble) = Some(format!("no thread to renew it: {e}"));
        }
        renewed
    }

    pub fn get(&self) -> Arc<T> {
        Arc::clone(&self.now.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub fn set(&self, value: T) {
        let before = std::mem::replace(
            &mut *self.now.write().unwrap_or_else(PoisonError::into_inner),
            Arc::new(value),
        );
        let mut past = lock(&self.past);
        if past.len() == PAST_MAX {
            past.remove(0);
        }
        past.push(before);
        *lock(&self.trouble) = None;
    }

    pub fn refused(&self) {
        *lock(&self.wake.refused) = true;
        self.wake.told.notify_one();
    }

    /// Returns the current value and the earlier ones.
    pub fn all(&self) -> Vec<Arc<T>> {
        lock(&self.past).iter().cloned().chain([self.get()]).collect()
    }

    /// Returns the error of the last check, if it failed.
    pub fn trouble(&self) -> Option<String> {
        lock(&self.trouble).clone()
    }
}

impl Wake {
    fn wait(&self) -> RefreshReason {
        let refused = lock(&self.refused);
        let (mut refused, _) = self
            .told
            .wait_timeout_while(refused, LOOK, |refused| !*refused)
            .unwrap_or_else(PoisonError::into_inner);
        if std::mem::take(&mut *refused) { RefreshReason::Refused } else { RefreshReason::Due }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[test]
    fn a_refusal_brings_the_next_value_at_once_and_the_one_before_is_remembered() {
        let looks = Arc::new(AtomicU32::new(0));
        let count = Arc::clone(&looks);
        let renewed = RefreshedValue::start(0, move |why| match why {
            RefreshReason::Refused => Ok(Some(count.fetch_add(1, Ordering::SeqCst) + 1)),
            RefreshReason::Due => Ok(None),
        });
        renewed.refused();
        while *renewed.get() != 1 {
            std::thread::yield_now();
        }
        assert_eq!(renewed.all().iter().map(|n| **n).collect::<Vec<_>>(), [0, 1]);
        assert_eq!((renewed.trouble(), format!("{renewed:?}")), (None, "Renewed(***)".to_owned()));
    }

    #[test]
    fn what_cannot_be_had_leaves_the_value_and_says_why() {
        let renewed = RefreshedValue::start("old", |_| Err("gone".to_owned()));
        renewed.refused();
        while renewed.trouble().is_none() {
            std::thread::yield_now();
        }
        assert_eq!((*renewed.get(), renewed.trouble().as_deref()), ("old", Some("gone")));
    }
}
