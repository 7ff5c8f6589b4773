//! SQS with long polls and batch deletes.
//!
//! UPSTREAM: pkg/providers/sqs/sqs.go

use std::time::Duration;

use aws_sdk_sqs::types::DeleteMessageBatchRequestEntry;
use parking_lot::Mutex;

use crate::sdk::{Aws, AwsError};

/// Maximum number of messages that SQS returns or deletes in one call.
pub const BATCH: usize = 10;
/// Visibility timeout of received messages, in seconds.
const HIDDEN: i32 = 20;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received {
    pub body: String,
    /// Receipt handle, by which the message is deleted.
    pub handle: String,
}

/// An SQS queue, identified by its name.
#[derive(Debug)]
pub struct Queue {
    aws: Aws,
    name: String,
    url: Mutex<Option<String>>,
}

impl Queue {
    /// Creates a client of the queue with this name.
    #[must_use]
    pub fn new(aws: Aws, name: &str) -> Self {
        Self {
            aws,
            name: name.to_owned(),
            url: Mutex::default(),
        }
    }

    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    fn known(&self) -> Option<String> {
        let known = self.url.lock();
        known.clone()
    }

    fn remember(&self, url: Option<String>) {
        *self.url.lock() = url;
    }

    async fn url(&self) -> Result<String, AwsError> {
        if let Some(url) = self.known() {
            return Ok(url);
        }
        let answer = self
            .aws
            .sqs("GetQueueUrl", |sqs| {
                sqs.get_queue_url().queue_name(&self.name).send()
            })
            .await?;
        let url = answer
            .queue_url()
            .ok_or_else(|| AwsError::unreadable("GetQueueUrl", "the response lacks the URL"))?;
        self.remember(Some(url.to_owned()));
        Ok(url.to_owned())
    }

    /// Receives a batch of messages; waits for the first of them at most this long.
    ///
    /// # Errors
    /// The error of SQS.
    pub async fn receive(&self, wait: Duration) -> Result<Vec<Received>, AwsError> {
        let url = self.url().await?;
        let seconds = i32::try_from(wait.as_secs()).unwrap_or(i32::MAX);
        let most = i32::try_from(BATCH).unwrap_or(i32::MAX);
        let answer = self
            .aws
            .sqs("ReceiveMessage", |sqs| {
                sqs.receive_message()
                    .queue_url(&url)
                    .max_number_of_messages(most)
                    .visibility_timeout(HIDDEN)
                    .wait_time_seconds(seconds)
                    .send()
            })
            .await;
        let answer = match answer {
            Ok(answer) => answer,
            Err(error) => {
                // A recreated queue of the same name may have another URL.
                self.remember(None);
                return Err(error);
            }
        };
        let messages = answer.messages().iter().filter_map(|message| {
            Some(Received {
                body: message.body().unwrap_or_default().to_owned(),
                handle: message.receipt_handle()?.to_owned(),
            })
        });
        Ok(messages.collect())
    }

    /// Deletes a batch of at most ten messages; returns the number of deleted ones. The others are redelivered.
    ///
    /// # Errors
    /// The error of SQS.
    pub async fn delete(&self, handles: &[&str]) -> Result<usize, AwsError> {
        if handles.is_empty() {
            return Ok(0);
        }
        let url = self.url().await?;
        let entries = handles
            .iter()
            .enumerate()
            .map(|(n, handle)| {
                DeleteMessageBatchRequestEntry::builder()
                    .id(n.to_string())
                    .receipt_handle(*handle)
                    .build()
            })
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| AwsError::unreadable("DeleteMessageBatch", error.to_string()))?;
        let answer = self
            .aws
            .sqs("DeleteMessageBatch", |sqs| {
                sqs.delete_message_batch()
                    .queue_url(&url)
                    .set_entries(Some(entries.clone()))
                    .send()
            })
            .await?;
        for failed in answer.failed() {
            tracing::debug!(
                logger = "interruption",
                "aws-error-code" = failed.code(),
                message = failed.message().unwrap_or_default(),
                "failed to delete a message, it will be redelivered"
            );
        }
        Ok(answer.successful().len())
    }
}
