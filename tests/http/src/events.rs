//! Server-sent events, read with a parser that is not ours.

use crate::{Outcome, Server};
use base64::Engine as _;
use eventsource_stream::Eventsource as _;
use futures_util::{Stream, StreamExt as _};
use serde_json::Value;
use std::pin::Pin;

/// One event.
#[derive(Debug, Clone)]
pub struct Got {
    pub name: String,
    pub id: String,
    pub data: Value,
}

type Parsed = Result<eventsource_stream::Event, Box<dyn std::error::Error + Send + Sync>>;

/// A stream of events; dropping it drops its connection.
pub struct Sse {
    stream: Pin<Box<dyn Stream<Item = Parsed> + Send>>,
}

impl Server {
    /// Asks for events; another status than 200 is an error that says it.
    pub async fn events(
        &self,
        method: &str,
        path: &str,
        body: Option<&Value>,
        last: Option<&str>,
    ) -> Outcome<Sse> {
        let method = reqwest::Method::from_bytes(method.as_bytes())?;
        // A connection of its own, so that dropping it is seen.
        let client = reqwest::Client::new();
        let mut request = client
            .request(method, format!("{}{path}", self.url))
            .header("accept", "text/event-stream");
        if let Some(body) = body {
            request = request.json(body);
        }
        if let Some(last) = last {
            request = request.header("last-event-id", last);
        }
        let answer = request.send().await?;
        let status = answer.status().as_u16();
        if status != 200 {
            return Err(format!("{status} {}", answer.text().await?).into());
        }
        let kind = answer.headers().get("content-type").ok_or("no type")?;
        assert_eq!(kind, "text/event-stream");
        let stream = answer.bytes_stream().eventsource();
        Ok(Sse {
            stream: Box::pin(stream.map(|event| event.map_err(|e| e.to_string().into()))),
        })
    }
}

impl Sse {
    /// The next event; none when the stream has ended.
    pub async fn next(&mut self) -> Outcome<Option<Got>> {
        match self.stream.next().await {
            None => Ok(None),
            Some(event) => {
                let event = event?;
                Ok(Some(Got {
                    name: event.event,
                    id: event.id,
                    data: serde_json::from_str(&event.data)?,
                }))
            }
        }
    }

    /// Everything up to the first event of this name, with it.
    pub async fn until(&mut self, name: &str) -> Outcome<Vec<Got>> {
        let mut all = Vec::new();
        while let Some(got) = self.next().await? {
            let found = got.name == name;
            all.push(got);
            if found {
                return Ok(all);
            }
        }
        Err(format!("no {name} among {all:?}").into())
    }
}

/// The output of a job, put together from events.
#[derive(Debug, Default)]
pub struct Gathered {
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
    pub last: String,
    pub done: Option<Value>,
}

impl Gathered {
    /// Adds an event; output must come without gap or repetition.
    pub fn take(&mut self, got: &Got) -> Outcome {
        self.last.clone_from(&got.id);
        let to = match got.name.as_str() {
            "stdout" => &mut self.stdout,
            "stderr" => &mut self.stderr,
            "done" => {
                self.done = Some(got.data.clone());
                return Ok(());
            }
            "skipped" | "failure" => return Err(format!("{got:?}").into()),
            _ => return Ok(()),
        };
        assert_eq!(got.data["offset"], to.len());
        to.extend(bytes(&got.data)?);
        Ok(())
    }
}

/// What `text` or `base64` stands for.
pub fn bytes(data: &Value) -> Outcome<Vec<u8>> {
    match (data["text"].as_str(), data["base64"].as_str()) {
        (Some(text), None) => Ok(text.as_bytes().to_vec()),
        (None, Some(text)) => Ok(base64::engine::general_purpose::STANDARD.decode(text)?),
        _ => Err(format!("neither text nor base64: {data}").into()),
    }
}
