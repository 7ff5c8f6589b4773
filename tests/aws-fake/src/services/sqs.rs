//! SQS: queues with visibility timeout and long polling.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::REGION;
use crate::clock::later;
use crate::ids::Ids;
use crate::services::permissions::{Auth, Permission};
use crate::wire::Reply;
use crate::wire::error::AwsError;
use crate::wire::params::Params;

#[derive(Debug, Clone)]
struct Message {
    id: String,
    body: String,
    visible_at: Timestamp,
    /// Receipt handle of the last receive; older handles do not delete.
    handle: String,
}

#[derive(Debug, Clone)]
pub(crate) struct Queue {
    name: String,
    messages: VecDeque<Message>,
}

/// How long a received message stays hidden.
const VISIBILITY: Duration = Duration::from_secs(30);

impl Queue {
    pub(crate) fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            messages: VecDeque::new(),
        }
    }

    pub(crate) fn send(&mut self, body: String, now: Timestamp, ids: &mut Ids) {
        self.messages.push_back(Message {
            id: ids.uuid(),
            body,
            visible_at: now,
            handle: String::new(),
        });
    }

    /// Iterates over the messages that are waiting or in flight.
    pub(crate) fn bodies(&self) -> impl Iterator<Item = &str> {
        self.messages.iter().map(|m| m.body.as_str())
    }

    /// Returns when the next hidden message becomes visible.
    pub(crate) fn next_visible(&self, now: Timestamp) -> Option<Timestamp> {
        self.messages
            .iter()
            .map(|m| m.visible_at)
            .filter(|at| *at > now)
            .min()
    }

    fn delete(&mut self, handle: &str) -> Result<(), AwsError> {
        if !handle.starts_with(&self.prefix()) {
            return Err(AwsError::new(
                "ReceiptHandleIsInvalid",
                format!("The input receipt handle \"{handle}\" is not a valid receipt handle."),
            ));
        }
        // A stale handle succeeds and deletes nothing, as on SQS.
        self.messages.retain(|m| m.handle != handle);
        Ok(())
    }

    fn prefix(&self) -> String {
        format!("{}#", self.name)
    }
}

#[derive(Debug, Default)]
pub(crate) struct Queues(pub(crate) BTreeMap<String, Queue>);

/// Returns the code's name in the Query protocol; clients in compatibility mode read it from a header.
pub(crate) fn query_code(code: &str) -> String {
    match code {
        "QueueDoesNotExist" => "AWS.SimpleQueueService.NonExistentQueue".to_owned(),
        "BatchEntryIdsNotDistinct"
        | "EmptyBatchRequest"
        | "TooManyEntriesInBatchRequest"
        | "InvalidBatchEntryId" => format!("AWS.SimpleQueueService.{code}"),
        other => other.rsplit('#').next().unwrap_or_default().to_owned(),
    }
}

/// Outcome of a call to SQS.
#[derive(Debug)]
pub(crate) enum Outcome {
    Done(Reply),
    /// No message yet; retry on a change, for at most this long.
    Wait(Duration),
}

#[derive(Debug)]
pub(crate) struct SqsCall<'a> {
    pub(crate) action: String,
    pub(crate) now: Timestamp,
    pub(crate) account: &'a str,
    /// `http://host:port` as the client addressed it.
    pub(crate) endpoint: &'a str,
    pub(crate) queues: &'a mut Queues,
    pub(crate) ids: &'a mut Ids,
    pub(crate) auth: Auth<'a>,
}

fn no_queue() -> AwsError {
    AwsError::new("QueueDoesNotExist", "The specified queue does not exist.")
}

fn missing(name: &str) -> AwsError {
    AwsError::new(
        "MissingParameter",
        format!("The request must contain the parameter {name}."),
    )
}

fn batch(p: Params<'_>) -> Result<Vec<Params<'_>>, AwsError> {
    let entries: Vec<Params<'_>> = p.list("Entries").collect();
    let refuse = |code: &str, message: &str| Err(AwsError::new(code, message));
    if entries.is_empty() {
        return refuse(
            "EmptyBatchRequest",
            "There should be at least one entry in the request.",
        );
    }
    if entries.len() > 10 {
        return refuse(
            "TooManyEntriesInBatchRequest",
            "Maximum number of entries per request are 10.",
        );
    }
    let mut ids: Vec<&str> = entries.iter().filter_map(|e| e.text("Id")).collect();
    ids.sort_unstable();
    if ids.windows(2).any(|w| w[0] == w[1]) || ids.len() < entries.len() {
        return refuse(
            "BatchEntryIdsNotDistinct",
            "Id of each entry must be unique.",
        );
    }
    Ok(entries)
}

impl SqsCall<'_> {
    pub(crate) fn run(&mut self, params: &Value, waited: bool) -> Result<Outcome, AwsError> {
        let p = Params(params);
        let done = |value: Value| Ok(Outcome::Done(Reply::Tree(value)));
        match self.action.as_str() {
            "GetQueueUrl" => {
                let name = p.text("QueueName").ok_or_else(|| missing("QueueName"))?;
                self.need(name)?;
                if !self.queues.0.contains_key(name) {
                    return Err(no_queue());
                }
                done(json!({"QueueUrl": self.url(name)}))
            }
            _ => self.on_queue(p, waited),
        }
    }

    fn on_queue(&mut self, p: Params<'_>, waited: bool) -> Result<Outcome, AwsError> {
        let url = p.text("QueueUrl").ok_or_else(|| missing("QueueUrl"))?;
        let name = url.rsplit('/').next().unwrap_or_default().to_owned();
        self.need(&name)?;
        let (now, action) = (self.now, self.action.clone());
        let ids = &mut *self.ids;
        let queue = self.queues.0.get_mut(&name).ok_or_else(no_queue)?;
        let done = |value: Value| Ok(Outcome::Done(Reply::Tree(value)));
        match action.as_str() {
            "ReceiveMessage" => receive(queue, p, waited, now, ids),
            "DeleteMessageBatch" => {
                let (mut good, mut bad) = (Vec::new(), Vec::new());
                for entry in batch(p)? {
                    let id = entry.text("Id").unwrap_or_default();
                    match queue.delete(entry.text("ReceiptHandle").unwrap_or_default()) {
                        Ok(()) => good.push(json!({"Id": id})),
                        Err(e) => bad.push(failed(id, &e)),
                    }
                }
                done(json!({"Successful": good, "Failed": bad}))
            }
            other => Err(AwsError::new(
                "InvalidAction",
                format!("The action {other} is not valid for this endpoint."),
            )),
        }
    }

    fn arn(&self, name: &str) -> String {
        format!("arn:aws:sqs:{REGION}:{}:{name}", self.account)
    }

    fn url(&self, name: &str) -> String {
        format!("{}/{}/{name}", self.endpoint, self.account)
    }

    fn need(&mut self, name: &str) -> Result<(), AwsError> {
        // Batch calls need the permission of the single call.
        let action = self.action.trim_end_matches("Batch");
        let permission = Permission::new(format!("sqs:{action}"), self.arn(name));
        self.auth.need(permission)
    }
}

fn failed(id: &str, error: &AwsError) -> Value {
    json!({"Id": id, "Code": error.code, "Message": error.message, "SenderFault": true})
}

fn digest(text: &str) -> String {
    format!("{:x}", md5::compute(text))
}

fn receive(
    queue: &mut Queue,
    p: Params<'_>,
    waited: bool,
    now: Timestamp,
    ids: &mut Ids,
) -> Result<Outcome, AwsError> {
    let bounded = |name: &str, low: i64, high: i64| match p.int(name) {
        Some(n) if !(low..=high).contains(&n) => Err(AwsError::invalid_value(format!(
            "Value {n} for parameter {name} is invalid. Reason: Must be >= {low} and <= {high}, if provided."
        ))),
        n => Ok(n.and_then(|n| u64::try_from(n).ok())),
    };
    let most = bounded("MaxNumberOfMessages", 1, 10)?.unwrap_or(1);
    let visibility = bounded("VisibilityTimeout", 0, 43_200)?.map(Duration::from_secs);
    let wait = bounded("WaitTimeSeconds", 0, 20)?.map(Duration::from_secs);
    let visible_at = later(now, visibility.unwrap_or(VISIBILITY));
    let wait = wait.unwrap_or_default();
    let prefix = queue.prefix();
    let mut rows = Vec::new();
    let ready = queue.messages.iter_mut().filter(|m| m.visible_at <= now);
    for message in ready.take(usize::try_from(most).unwrap_or(1)) {
        message.visible_at = visible_at;
        message.handle = format!("{prefix}{}", ids.hex("", 32));
        rows.push(json!({
            "MessageId": message.id,
            "ReceiptHandle": message.handle,
            "MD5OfBody": digest(&message.body),
            "Body": message.body,
        }));
    }
    if rows.is_empty() && !wait.is_zero() && !waited {
        return Ok(Outcome::Wait(wait));
    }
    // An empty response has no `Messages` at all.
    let reply = if rows.is_empty() {
        json!({})
    } else {
        json!({"Messages": rows})
    };
    Ok(Outcome::Done(Reply::Tree(reply)))
}
