//! How many searches each user has.

use parking_lot::Mutex;

use crate::decisions::server::status::Failure;

/// The most searches of a user, with those that wait: one user does not keep the others waiting.
const MOST: usize = 2;

/// The user of each search that is made or waits. Connections limit how many there are.
#[derive(Debug, Default)]
pub(super) struct Searches(Mutex<Vec<String>>);

/// A search of a user, until it is dropped.
#[derive(Debug)]
pub(super) struct Search<'s> {
    all: &'s Searches,
    user: String,
}

impl Searches {
    /// Begins a search of a user.
    pub(super) fn begin(&self, user: &str) -> Result<Search<'_>, Failure> {
        let mut all = self.0.lock();
        if all.iter().filter(|other| *other == user).count() >= MOST {
            let message = format!("{MOST} questions of this user are being answered already");
            return Err(Failure::busy(&message));
        }
        all.push(user.to_owned());
        Ok(Search {
            all: self,
            user: user.to_owned(),
        })
    }
}

impl Drop for Search<'_> {
    fn drop(&mut self) {
        let mut all = self.all.0.lock();
        if let Some(at) = all.iter().position(|user| *user == self.user) {
            all.swap_remove(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_has_two_searches_at_a_time_whatever_others_have() {
        let searches = Searches::default();
        let _first = searches.begin("a").unwrap();
        let second = searches.begin("a").unwrap();
        assert_eq!(searches.begin("a").unwrap_err().response().status(), 429);
        assert!(searches.begin("b").is_ok());
        drop(second);
        assert!(searches.begin("a").is_ok());
    }
}
