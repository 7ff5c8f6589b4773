//! Remembers the last writes of this process, so that its controllers do not conflict with each other.
//!
//! The model receives a write when the watch reports it; until then a controller that reads the model would compute its
//! patch from an outdated version, get a conflict, and repeat its work. [`Writes`] remembers the API server's answers to
//! patches:
//!
//! 1. [`Writes::latest`] returns the newer version of the model's and the last answer.
//! 2. Patches of one object are sent one after another.
//! 3. A patch that was computed from an older version than our own last write is rejected here, with the error that the API
//!    server would have returned. Conflicts with other writers are detected by the API server.
//!
//! It is an optimization: a forgotten write costs one conflict.

use std::collections::VecDeque;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use kube::core::Status;
use kube::{Api, Resource};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::Instant;

use crate::client::delete::only_uid;
use crate::client::patch;
use crate::client::patch::Lock;
use crate::error::is_not_found;

/// How long an answer is cached at least, twice as long at most while objects are read or written. The watch reports it much earlier.
const RETENTION: Duration = Duration::from_secs(60);

/// The last writes to the objects of a cluster-scoped kind.
#[derive(Debug)]
pub struct Writes<K> {
    state: Mutex<State<K>>,
    /// Removes from an answer what no controller reads.
    trim: fn(&mut K),
}

#[derive(Debug)]
struct State<K> {
    objects: FxHashMap<String, Entry<K>>,
    /// The name of each entry, once, with a time at which it was used; about in the order of time.
    used: VecDeque<(Instant, String)>,
}

#[derive(Debug)]
struct Entry<K> {
    /// Held by the current writer of the object.
    turn: Arc<tokio::sync::Mutex<()>>,
    latest: Option<Arc<K>>,
    /// When it was last written or waited for.
    at: Instant,
}

impl<K: Resource> Default for Writes<K> {
    fn default() -> Self {
        Self::trimmed(|object| object.meta_mut().managed_fields = None)
    }
}

impl<K> Writes<K> {
    /// Creates an empty memory of writes; `trim` removes from an answer what no controller reads.
    pub fn trimmed(trim: fn(&mut K)) -> Self {
        let state = State {
            objects: FxHashMap::default(),
            used: VecDeque::new(),
        };
        Self {
            state: Mutex::new(state),
            trim,
        }
    }
}

/// Returns the resourceVersion, which can be compared as a number (Kubernetes 1.35 guarantees it, earlier releases do it).
fn version<K: Resource>(object: &K) -> Option<u64> {
    object.meta().resource_version.as_deref()?.parse().ok()
}

fn is_newer<K: Resource>(written: &K, seen: &K) -> bool {
    let same = written.meta().uid == seen.meta().uid;
    let later = matches!((version(written), version(seen)), (Some(w), Some(s)) if w > s);
    same && (later || is_gone(written))
}

/// Returns whether the object was deleted with the write. The API server then answers with the version before it.
fn is_gone<K: Resource>(object: &K) -> bool {
    let meta = object.meta();
    meta.deletion_timestamp.is_some() && meta.finalizers.as_ref().is_none_or(Vec::is_empty)
}

fn name<K: Resource>(object: &K) -> &str {
    object.meta().name.as_deref().unwrap_or_default()
}

impl<K> Writes<K>
where
    K: Resource + Serialize + DeserializeOwned + Clone + PartialEq + Debug,
{
    fn with<R>(&self, act: impl FnOnce(&mut State<K>) -> R) -> R {
        let mut state = self.state.lock();
        state.forget_old();
        act(&mut state)
    }

    /// Returns the last answer if it is newer than the version that was read.
    fn written(&self, seen: &K) -> Option<Arc<K>> {
        self.with(|state| {
            let written = state.objects.get(name(seen))?.latest.as_ref()?;
            is_newer(&**written, seen).then(|| Arc::clone(written))
        })
    }

    /// Returns the newer of the version that was read and the version that was last written.
    #[must_use]
    pub fn latest(&self, seen: &Arc<K>) -> Arc<K> {
        self.written(seen).unwrap_or_else(|| Arc::clone(seen))
    }

    /// Remembers the API server's answer to a write.
    pub fn remember(&self, answer: &K) {
        self.with(|state| {
            let Some(entry) = state.objects.get_mut(name(answer)) else {
                return;
            };
            if entry.latest.as_ref().is_none_or(|known| {
                known.meta().uid != answer.meta().uid || is_newer(answer, &**known)
            }) {
                let mut answer = answer.clone();
                (self.trim)(&mut answer);
                entry.latest = Some(Arc::new(answer));
                entry.at = Instant::now();
            }
        });
    }

    /// Waits until no other task of this process writes the object.
    pub async fn turn(&self, object: &K) -> tokio::sync::OwnedMutexGuard<()> {
        let turn = self.with(|state| {
            let now = Instant::now();
            let used = &mut state.used;
            let entry = state.objects.entry(name(object).to_owned());
            let entry = entry.or_insert_with_key(|name| {
                used.push_back((now, name.clone()));
                Entry {
                    turn: Arc::default(),
                    latest: None,
                    at: now,
                }
            });
            entry.at = now;
            Arc::clone(&entry.turn)
        });
        turn.lock_owned().await
    }

    /// Fails as the API server would, if `before` is older than the last write.
    fn check(&self, before: &K, lock: Lock) -> Result<(), kube::Error> {
        if lock == Lock::None || self.written(before).is_none() {
            return Ok(());
        }
        let message = "the object has been modified by another controller of this process";
        let status = Status::failure(message, "Conflict").with_code(409);
        Err(kube::Error::Api(Box::new(status)))
    }

    /// Calls [`patch::patch_object`] in turn.
    ///
    /// # Errors
    /// The API server's; a conflict if `lock` is optimistic and another client or this process wrote in between.
    pub async fn patch_object(
        &self,
        api: Api<K>,
        before: &K,
        after: &K,
        lock: Lock,
    ) -> Result<Option<K>, kube::Error> {
        let sent = patch::patch_object(&api, before, after, lock);
        self.patched(before, after, lock, sent).await
    }

    /// Calls [`patch::patch_status`] in turn.
    ///
    /// # Errors
    /// The API server's; a conflict if `lock` is optimistic and another client or this process wrote in between.
    pub async fn patch_status(
        &self,
        api: Api<K>,
        before: &K,
        after: &K,
        lock: Lock,
    ) -> Result<Option<K>, kube::Error> {
        let sent = patch::patch_status(&api, before, after, lock);
        self.patched(before, after, lock, sent).await
    }

    /// Sends a patch in turn, and remembers the answer.
    async fn patched(
        &self,
        before: &K,
        after: &K,
        lock: Lock,
        sent: impl Future<Output = Result<Option<K>, kube::Error>>,
    ) -> Result<Option<K>, kube::Error> {
        if before == after {
            return Ok(None);
        }
        let _turn = self.turn(before).await;
        self.check(before, lock)?;
        let answer = sent.await?;
        answer.iter().for_each(|answer| self.remember(answer));
        Ok(answer)
    }

    /// Deletes the object in turn; returns false if it does not exist any more.
    ///
    /// # Errors
    /// The API server's; a conflict if another object has its name now, or if `lock` is optimistic and another client or this
    /// process wrote in between.
    pub async fn delete(&self, api: Api<K>, seen: &K, lock: Lock) -> Result<bool, kube::Error> {
        let _turn = self.turn(seen).await;
        self.check(seen, lock)?;
        let mut only_this = only_uid(seen.meta().uid.clone());
        if let Some(preconditions) = &mut only_this.preconditions
            && lock == Lock::Optimistic
        {
            preconditions.resource_version = seen.meta().resource_version.clone();
        }
        match api.delete(name(seen), &only_this).await {
            Ok(answer) => {
                answer
                    .left()
                    .iter()
                    .for_each(|answer| self.remember(answer));
                Ok(true)
            }
            Err(error) if is_not_found(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Patches the status in turn: `change` is applied to the latest known version. Returns the status as written.
    ///
    /// For writers that own their part of the status, so that changes of other controllers do not matter to them.
    ///
    /// # Errors
    /// The API server's; a conflict if another process wrote in between.
    pub async fn change_status(
        &self,
        api: Api<K>,
        seen: &K,
        change: impl FnOnce(&mut K),
    ) -> Result<Arc<K>, kube::Error> {
        let _turn = self.turn(seen).await;
        let before = self.written(seen).unwrap_or_else(|| Arc::new(seen.clone()));
        let mut after = K::clone(&before);
        change(&mut after);
        let answer = patch::patch_status(&api, &before, &after, Lock::Optimistic).await?;
        Ok(match answer {
            Some(answer) => {
                self.remember(&answer);
                Arc::new(answer)
            }
            None => before,
        })
    }
}

impl<K> State<K> {
    /// Removes entries that were not used for a while: a burst leaves one for each object.
    fn forget_old(&mut self) {
        let now = Instant::now();
        while let Some((_, name)) = self
            .used
            .pop_front_if(|(at, _)| now.duration_since(*at) >= RETENTION)
        {
            let Some(entry) = self.objects.get(&name) else {
                continue;
            };
            let writing = Arc::strong_count(&entry.turn) > 1;
            let at = if writing { now } else { entry.at };
            if now.duration_since(at) < RETENTION {
                self.used.push_back((at, name));
            } else {
                self.objects.remove(&name);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use http::{Request, Response, StatusCode};
    use http_body_util::BodyExt;
    use k8s_openapi::api::core::v1::Node;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use kube::Client;
    use kube::client::Body;
    use serde_json::{Value, json};

    use super::*;

    /// An API server with one Node that counts the patches it has answered.
    #[derive(Default)]
    struct Server {
        version: u64,
        labels: serde_json::Map<String, Value>,
        patches: usize,
    }

    impl Server {
        fn node(&self) -> Value {
            let version = self.version.to_string();
            json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n", "uid": "u", "resourceVersion": version,
                "labels": self.labels}})
        }

        fn patch(&mut self, patch: &Value) -> (StatusCode, Value) {
            self.patches += 1;
            let asked = patch["metadata"]["resourceVersion"].as_str();
            if asked.is_some_and(|version| version != self.version.to_string()) {
                let status = json!({"kind": "Status", "status": "Failure", "message": "", "reason": "Conflict", "code": 409});
                return (StatusCode::CONFLICT, status);
            }
            self.version += 1;
            let labels = patch["metadata"]["labels"].as_object();
            self.labels.extend(labels.cloned().unwrap_or_default());
            (StatusCode::OK, self.node())
        }
    }

    fn serve(server: &Arc<Mutex<Server>>) -> Api<Node> {
        let server = Arc::clone(server);
        let service = tower::service_fn(move |request: Request<Body>| {
            let server = Arc::clone(&server);
            async move {
                let body = request.into_body().collect().await.unwrap().to_bytes();
                // Requests that arrive meanwhile have to wait.
                tokio::time::sleep(Duration::from_millis(10)).await;
                let patch = serde_json::from_slice(&body).unwrap();
                let (code, answer) = server.lock().patch(&patch);
                let answer = Body::from(serde_json::to_vec(&answer).unwrap());
                let response = Response::builder().status(code).body(answer);
                Ok::<_, std::convert::Infallible>(response.unwrap())
            }
        });
        Api::all(Client::new(service, "default"))
    }

    fn seen(server: &Arc<Mutex<Server>>) -> Arc<Node> {
        Arc::new(serde_json::from_value(server.lock().node()).unwrap())
    }

    fn labeled(node: &Node, key: &str) -> Node {
        let mut node = node.clone();
        let labels = node.metadata.labels.get_or_insert_default();
        labels.insert(key.to_owned(), String::new());
        node
    }

    fn is_conflict<T>(result: &Result<T, kube::Error>) -> bool {
        matches!(result, Err(kube::Error::Api(status)) if status.is_conflict())
    }

    #[tokio::test(start_paused = true)]
    async fn a_written_version_is_newer_than_the_models() {
        let server = Arc::default();
        let (api, writes, seen) = (serve(&server), Writes::default(), seen(&server));
        assert_eq!(writes.latest(&seen), seen);
        let after = labeled(&seen, "a");
        let patched = writes.patch_object(api, &seen, &after, Lock::Optimistic);
        let written = Arc::new(patched.await.unwrap().unwrap());
        assert_eq!(writes.latest(&seen), written);
        let later = |version: &str, uid: &str| {
            let mut later = Node::clone(&seen);
            later.metadata.resource_version = Some(version.into());
            later.metadata.uid = Some(uid.into());
            Arc::new(later)
        };
        let newer = later("2", "u");
        assert_eq!(writes.latest(&newer), newer, "the watch has caught up");
        let mut released = Node::clone(&seen);
        released.metadata.deletion_timestamp = Some(Time(jiff::Timestamp::UNIX_EPOCH));
        writes.remember(&released);
        assert!(
            writes.latest(&newer).metadata.deletion_timestamp.is_some(),
            "it was deleted"
        );
        let namesake = later("0", "other");
        assert_eq!(writes.latest(&namesake), namesake);
    }

    #[tokio::test(start_paused = true)]
    async fn a_patch_from_before_our_own_last_write_is_rejected_without_a_request() {
        let server = Arc::default();
        let (api, writes, seen) = (serve(&server), Writes::default(), seen(&server));
        let patch = |key: &str, lock| {
            let (api, writes, seen) = (api.clone(), &writes, &seen);
            let after = labeled(seen, key);
            async move { writes.patch_object(api, seen, &after, lock).await }
        };
        let (first, second) =
            tokio::join!(patch("a", Lock::Optimistic), patch("b", Lock::Optimistic));
        assert!(first.is_ok() && is_conflict(&second), "{second:?}");
        assert_eq!(server.lock().patches, 1);
        assert!(patch("c", Lock::None).await.is_ok());
        let labels: Vec<_> = server.lock().labels.keys().cloned().collect();
        assert_eq!(labels, ["a", "c"]);
    }

    #[tokio::test(start_paused = true)]
    async fn changes_of_two_writers_are_applied_one_after_the_other() {
        let server = Arc::default();
        let (api, writes, seen) = (serve(&server), Writes::default(), seen(&server));
        let status = |phase: &'static str| {
            let (api, writes, seen) = (api.clone(), &writes, &seen);
            async move {
                let set = |node: &mut Node| {
                    node.status.get_or_insert_default().phase = Some(phase.to_owned());
                };
                writes.change_status(api, seen, set).await
            }
        };
        let (first, second) = tokio::join!(status("a"), status("b"));
        assert!(first.is_ok() && second.is_ok(), "{first:?} {second:?}");
        assert_eq!(server.lock().patches, 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_conflict_with_another_process_remains_a_conflict() {
        let server: Arc<Mutex<Server>> = Arc::default();
        let (api, writes, seen) = (serve(&server), Writes::default(), seen(&server));
        server.lock().version += 1;
        let after = labeled(&seen, "a");
        let refused = writes.patch_object(api, &seen, &after, Lock::Optimistic);
        assert!(is_conflict(&refused.await));
        assert_eq!(server.lock().patches, 1);
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_is_cached_without_managed_fields_and_for_a_minute() {
        let writes = Writes::default();
        let node = |version: &str| -> Arc<Node> {
            let metadata = json!({"name": "n", "uid": "u", "resourceVersion": version,
                "managedFields": [{"manager": "m"}]});
            Arc::new(serde_json::from_value(json!({ "metadata": metadata })).unwrap())
        };
        let (seen, answer) = (node("1"), node("2"));
        drop(writes.turn(&*seen).await);
        writes.remember(&answer);
        assert_eq!(writes.latest(&seen).metadata.managed_fields, None);
        assert_eq!(writes.latest(&answer), answer);
        tokio::time::advance(RETENTION - Duration::from_secs(1)).await;
        let latest = writes.latest(&seen);
        assert_eq!(
            latest.metadata.resource_version.as_deref(),
            Some("2"),
            "an older version may still be read elsewhere"
        );
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(writes.latest(&seen), seen);
    }

    #[tokio::test(start_paused = true)]
    async fn an_object_that_is_written_or_waited_for_is_retained() {
        let writes = Writes::default();
        let named = |name: &str| {
            let mut node = Node::default();
            node.metadata.name = Some(name.to_owned());
            node
        };
        let (busy, idle) = (named("busy"), named("idle"));
        let turn = writes.turn(&busy).await;
        drop(writes.turn(&idle).await);
        let kept = || writes.with(|state| state.objects.keys().cloned().collect::<Vec<_>>());
        tokio::time::advance(RETENTION).await;
        assert_eq!(kept(), ["busy"]);
        drop(turn);
        tokio::time::advance(RETENTION - Duration::from_secs(1)).await;
        drop(writes.turn(&busy).await);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(kept(), ["busy"], "it was used a second ago");
        tokio::time::advance(RETENTION).await;
        assert!(kept().is_empty());
    }
}
