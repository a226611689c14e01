//! A session's life over HTTP, and what it is measured against.

#![allow(dead_code, reason = "each program uses a part")]

use crate::client::{Client, PYTHON, Result, Server};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

impl Client {
    pub(crate) fn create(&mut self) -> Result<String> {
        let (status, made) = self.ask("POST", "/sessions", "{}")?;
        match made["session_id"].as_str() {
            Some(id) if status == 201 => Ok(id.to_owned()),
            _ => Err(format!("no session: {status} {made}").into()),
        }
    }

    pub(crate) fn exec(&mut self, id: &str, body: &str, expected: &str) -> Result<()> {
        let (status, done) = self.ask("POST", &format!("/sessions/{id}/exec"), body)?;
        let content = &done["result_block"]["content"];
        if status == 200 && content["stdout"] == expected && content["return_code"] == 0 {
            return Ok(());
        }
        Err(format!("exec: {status} {done}").into())
    }

    pub(crate) fn delete(&mut self, id: &str) -> Result<()> {
        match self.ask("DELETE", &format!("/sessions/{id}"), "")? {
            (204, _) => Ok(()),
            (status, said) => Err(format!("delete: {status} {said}").into()),
        }
    }

    /// A call that must end in a way that its errors tell.
    pub(crate) fn exec_ending(&mut self, id: &str, body: &str, said: &str) -> Result<()> {
        let (status, done) = self.ask("POST", &format!("/sessions/{id}/exec"), body)?;
        let stderr = done["result_block"]["content"]["stderr"].as_str();
        match stderr.is_some_and(|text| status == 200 && text.contains(said)) {
            true => Ok(()),
            false => Err(format!("no {said:?}: {status} {done}").into()),
        }
    }

    /// The connection that is there, or a new one.
    pub(crate) fn again<'a>(slot: &'a mut Option<Self>, server: &Server) -> Result<&'a mut Self> {
        if slot.is_none() {
            *slot = Some(Self::new(server)?);
        }
        slot.as_mut().ok_or_else(|| "no connection".into())
    }
}

/// `python3 -c 'print(1)'` with nothing around it.
pub(crate) fn bare() -> Result<Duration> {
    let start = Instant::now();
    let status = Command::new(PYTHON)
        .args(["-c", "print(1)"])
        .env_clear()
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .status()?;
    match status.success() {
        true => Ok(start.elapsed()),
        false => Err("python3 failed".into()),
    }
}
