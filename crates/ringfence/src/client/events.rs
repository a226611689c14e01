//! Server-sent events of a job, as they come.

use super::Client;
use bytes::BytesMut;
use http::{HeaderName, Method};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use ringfence_core::{Code, Failure};
use serde_json::Value;
use std::time::Duration;

/// Most bytes of one event.
const EVENT: usize = 64 << 20;

/// How often a reader that was cut off comes back without having seen anything new, and the waits
/// between: each is twice the last one.
const TRIES: u32 = 8;
const PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(3);

pub(crate) struct Event {
    pub name: String,
    /// The position after it.
    id: String,
    pub data: Value,
}

pub(crate) struct Events {
    body: Incoming,
    held: BytesMut,
}

impl Client {
    /// The events of an answer that streams them.
    pub(crate) fn events(answer: http::Response<Incoming>) -> Events {
        Events {
            body: answer.into_body(),
            held: BytesMut::new(),
        }
    }

    /// The events of a job, from an answer that streams them. When that breaks off, as when the
    /// server is started again, the path of the job's events has the rest.
    pub(crate) fn follow(&self, answer: http::Response<Incoming>, path: String) -> Following {
        Following {
            client: self.clone(),
            path,
            events: Some(Self::events(answer)),
            at: String::new(),
            tries: 0,
        }
    }
}

/// The events of one job, across as many connections as it takes.
pub(crate) struct Following {
    client: Client,
    path: String,
    events: Option<Events>,
    /// The position after the last one that came.
    at: String,
    tries: u32,
}

impl Following {
    /// The next one; the last is `done` or `failure`.
    pub(crate) async fn next(&mut self) -> Result<Event, Failure> {
        loop {
            let lost = match &mut self.events {
                Some(events) => match events.next().await {
                    Ok(Some(event)) => {
                        // Each connection begins with an event that brings nothing new.
                        if event.id != self.at {
                            self.tries = 0;
                            self.at.clone_from(&event.id);
                        }
                        return Ok(event);
                    }
                    Ok(None) => broken().detail("they ended before the job"),
                    Err(failure) => failure,
                },
                None => broken(),
            };
            self.events = None;
            self.come_back(lost).await?;
        }
    }

    async fn come_back(&mut self, mut lost: Failure) -> Result<(), Failure> {
        while self.tries < TRIES {
            tokio::time::sleep((PAUSE * (1 << self.tries)).min(LONGEST_PAUSE)).await;
            self.tries += 1;
            let at = [(HeaderName::from_static("last-event-id"), self.at.as_str())];
            let body = super::empty();
            let asked = self.client.send(Method::GET, &self.path, &at, body);
            match asked.await {
                Ok(answer) => {
                    self.events = Some(Client::events(answer));
                    return Ok(());
                }
                Err(failure) if failure.code == Code::Unavailable => lost = failure,
                Err(failure) => return Err(failure),
            }
        }
        Err(lost)
    }
}

fn broken() -> Failure {
    Failure::new(Code::Unavailable, "the events of the job broke off")
}

impl Events {
    /// The next one; none at the end.
    pub(crate) async fn next(&mut self) -> Result<Option<Event>, Failure> {
        loop {
            if let Some(end) = self.held.windows(2).position(|two| two == b"\n\n") {
                let text = self.held.split_to(end + 2);
                match parse(&String::from_utf8_lossy(&text)) {
                    Some(event) => return Ok(Some(event)),
                    // A comment, to say that the stream lives.
                    None => continue,
                }
            }
            if self.held.len() > EVENT {
                return Err(broken().detail("an event is too long"));
            }
            match self.body.frame().await {
                None => return Ok(None),
                Some(Err(error)) => return Err(broken().detail(error)),
                Some(Ok(frame)) => {
                    if let Ok(bytes) = frame.into_data() {
                        self.held.extend_from_slice(&bytes);
                    }
                }
            }
        }
    }
}

fn parse(text: &str) -> Option<Event> {
    let (mut name, mut id, mut data) = (String::new(), String::new(), String::new());
    for line in text.lines() {
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "event" => value.clone_into(&mut name),
            "id" => value.clone_into(&mut id),
            "data" if data.is_empty() => value.clone_into(&mut data),
            "data" => {
                data.push('\n');
                data.push_str(value);
            }
            _ => {}
        }
    }
    let data = serde_json::from_str(&data).ok()?;
    Some(Event { name, id, data })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_have_a_name_and_data() {
        let event = parse("id: 1.0.0\nevent: stdout\ndata: {\"text\":\ndata: \"x\"}\n\n").unwrap();
        assert_eq!(
            (event.name, event.id),
            ("stdout".to_owned(), "1.0.0".to_owned())
        );
        assert_eq!(event.data["text"], "x");
        assert!(parse(": lives\n\n").is_none());
    }
}
