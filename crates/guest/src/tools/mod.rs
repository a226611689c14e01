//! Tools: functions of the host that Python code in the sandbox can call.
//!
//! Code imports a module that this installs; a call comes here over a socket inside the sandbox,
//! and waits until the host, which reads a stream of calls, has sent the reply. So nothing in the
//! sandbox calls out, and it works with the network off.

mod callers;
mod calls;
mod place;

use crate::http::{self, Answer, Request};
use crate::jobs::NDJSON;
use crate::server::Guest;
use ::http::Method;
use calls::Calls;
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Frame;
use place::Place;
use ringfence_proto::{Code, Failure, TOOL_REPLY_LIMIT, ToolReply, ToolsInfo, ToolsRequest};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Most bytes of names and documentation.
const TOOLS_BODY_LIMIT: usize = 4 << 20;

/// The tools of a sandbox, and the calls that run.
#[derive(Default)]
pub(crate) struct Tools {
    calls: Arc<Calls>,
    installed: Mutex<Installed>,
    /// Held while tools are installed.
    installing: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct Installed {
    place: Option<Arc<Place>>,
    listening: Option<Listening>,
    /// Counts changes: kernels learn of them at their next call.
    changes: u64,
}

/// A task that takes calls, until this is dropped.
struct Listening(tokio::task::AbortHandle);

impl Drop for Listening {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Tools {
    fn lock(&self) -> MutexGuard<'_, Installed> {
        self.installed
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets Python that is started with these variables find the module; what they say about
    /// its search path comes first. Answers with the state that they are made for.
    pub(crate) fn add_to(&self, env: &mut Vec<(String, String)>) -> u64 {
        let installed = self.lock();
        if let Some(place) = &installed.place {
            let before = env.iter().rev().find(|(name, _)| name == "PYTHONPATH");
            let path = match before {
                Some((_, before)) if !before.is_empty() => format!("{before}:{}", place.lib()),
                _ => place.lib().to_owned(),
            };
            env.push(("PYTHONPATH".to_owned(), path));
        }
        installed.changes
    }

    /// The folder of the module, if it has changed since `seen`, which then is up to date.
    pub(crate) fn news(&self, seen: &mut u64) -> Option<String> {
        let installed = self.lock();
        if *seen == installed.changes {
            return None;
        }
        *seen = installed.changes;
        Some(installed.place.as_ref()?.lib().to_owned())
    }

    /// Installs these in place of those of before.
    async fn install(&self, workspace: &Path, request: ToolsRequest) -> Result<ToolsInfo, Failure> {
        request.check()?;
        let _turn = self.installing.lock().await;
        let before = self.lock().place.clone();
        let (workspace, tools) = (workspace.to_owned(), request.tools);
        let names = tools.iter().map(|tool| tool.name.clone()).collect();
        let tool_count = tools.len() as u32;
        let work = tokio::task::spawn_blocking(move || match before {
            Some(place) if place.renew(&tools) => Ok((place, None)),
            _ => {
                let (place, listener) = Place::make(&workspace, &tools)?;
                Ok((Arc::new(place), Some(listener)))
            }
        });
        let broken = |e| Failure::new(Code::Internal, "installing the tools broke off").detail(e);
        let (place, listener) = work.await.map_err(broken)??;
        let failed = |e: std::io::Error| Failure::io("cannot listen for calls of tools", &e);
        let listening = match listener {
            Some(listener) => {
                let listener = tokio::net::UnixListener::from_std(listener).map_err(failed)?;
                let task = callers::accept(listener, Arc::clone(&self.calls));
                Some(Listening(tokio::spawn(task).abort_handle()))
            }
            None => None,
        };
        self.calls
            .allow(names, Duration::from_millis(request.timeout_ms));
        let info = ToolsInfo {
            stub_path: place.stub(),
            tool_count,
        };
        let mut installed = self.lock();
        if listening.is_some() {
            installed.listening = listening;
        }
        installed.place = Some(place);
        installed.changes += 1;
        Ok(info)
    }
}

pub(crate) async fn route(guest: &Arc<Guest>, request: Request, rest: &[&str]) -> Answer {
    let tools = &guest.tools;
    match (request.method(), rest) {
        (&Method::PUT, []) => {
            let bytes = http::bytes(request, TOOLS_BODY_LIMIT).await?;
            let wanted = http::parse(&bytes)?;
            http::json(&tools.install(&guest.config.workspace, wanted).await?)
        }
        (&Method::GET, ["calls"]) => {
            let lines = futures_util::stream::unfold(tools.calls.stream(), async |mut stream| {
                let line = stream.next().await;
                Some((Ok::<_, std::io::Error>(Frame::data(line)), stream))
            });
            Ok(http::with_type(
                NDJSON,
                StreamBody::new(lines).boxed_unsync(),
            ))
        }
        (&Method::POST, ["calls", id]) => {
            // Whoever called gets it as it came.
            let reply = http::bytes(request, TOOL_REPLY_LIMIT).await?;
            http::parse::<ToolReply>(&reply)?;
            tools.calls.reply(id, reply)?;
            http::empty()
        }
        _ => Err(Failure::new(
            Code::NotFound,
            format!("no such route: /tools/{}", rest.join("/")),
        )),
    }
}
