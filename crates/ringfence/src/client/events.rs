//! Server-sent events of a job, as they come.

use super::Client;
use bytes::BytesMut;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use ringfence_core::{Code, Failure};
use serde_json::Value;

/// Most bytes of one event.
const EVENT: usize = 64 << 20;

pub(crate) struct Event {
    pub name: String,
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
}

impl Events {
    /// The next one; none at the end.
    pub(crate) async fn next(&mut self) -> Result<Option<Event>, Failure> {
        let broken = || Failure::new(Code::Unavailable, "the events of the job broke off");
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
    let (mut name, mut data) = (String::new(), String::new());
    for line in text.lines() {
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "event" => value.clone_into(&mut name),
            "data" if data.is_empty() => value.clone_into(&mut data),
            "data" => {
                data.push('\n');
                data.push_str(value);
            }
            _ => {}
        }
    }
    let data = serde_json::from_str(&data).ok()?;
    Some(Event { name, data })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_have_a_name_and_data() {
        let event = parse("id: 1.0.0\nevent: stdout\ndata: {\"text\":\ndata: \"x\"}\n\n").unwrap();
        assert_eq!(event.name, "stdout");
        assert_eq!(event.data["text"], "x");
        assert!(parse(": lives\n\n").is_none());
    }
}
