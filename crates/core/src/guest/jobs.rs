//! What a guest is asked about jobs and kernels. Names that go into a path are checked by whoever
//! takes them from a caller: see [`is_name`].

use super::{Events, GRACE, GuestClient, by, full, longest, with_query};
use bytes::Bytes;
use http::Method;
use ringfence_proto::{
    ExecResult, Failure, JobInfo, KernelInfo, OutputQuery, PtySize, RunRequest, SignalRequest,
    StdinQuery, WaitQuery,
};
use serde::Serialize;
use tokio::time::Instant;

/// Whether this can be the id of a job or the name of a kernel.
pub fn is_name(name: &str) -> bool {
    let good = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || b == b'-';
    (1..=64).contains(&name.len()) && name.bytes().all(good)
}

impl GuestClient {
    /// Starts a call; answers while it runs or waits for its turn.
    pub async fn start_run(&self, kernel: &str, request: &RunRequest) -> Result<JobInfo, Failure> {
        let path = format!("/kernels/{kernel}/jobs");
        by(longest(), self.call(Method::POST, &path, request)).await
    }

    pub async fn jobs(&self) -> Result<Vec<JobInfo>, Failure> {
        self.get("/jobs", &()).await
    }

    pub async fn job(&self, job: &str) -> Result<JobInfo, Failure> {
        let deadline = Some(Instant::now() + GRACE);
        by(deadline, self.get(&format!("/jobs/{job}"), &())).await
    }

    /// Answers at the end of the job, or when the time is over, which is less than ten minutes.
    pub async fn wait(&self, job: &str, query: &WaitQuery) -> Result<JobInfo, Failure> {
        self.get(&format!("/jobs/{job}/wait"), query).await
    }

    /// The result of a job that has ended.
    pub async fn result(
        &self,
        job: &str,
        output_limit: Option<u64>,
    ) -> Result<ExecResult, Failure> {
        #[derive(Serialize)]
        struct Query {
            #[serde(skip_serializing_if = "Option::is_none")]
            output_limit: Option<u64>,
        }
        self.get(&format!("/jobs/{job}/result"), &Query { output_limit })
            .await
    }

    /// The events of a job from these positions on. There is no limit to how long that may take:
    /// whoever reads goes on or does not.
    pub async fn job_events(&self, job: &str, from: &OutputQuery) -> Result<Events, Failure> {
        let path = with_query(&format!("/jobs/{job}/events"), from)?;
        let answer = self.send(Method::GET, &path, full(Bytes::new()), None);
        let deadline = Some(Instant::now() + GRACE);
        let response = by(deadline, async { super::checked(answer.await?).await }).await?;
        Ok(Box::pin(super::lines(
            response.into_body(),
            None,
            super::is_end,
        )))
    }

    /// Ends a job; it stays known, and its end says why.
    pub async fn cancel(&self, job: &str) -> Result<(), Failure> {
        self.tell(Method::POST, &format!("/jobs/{job}/cancel"), &())
            .await
    }

    pub async fn signal(&self, job: &str, request: &SignalRequest) -> Result<(), Failure> {
        self.tell(Method::POST, &format!("/jobs/{job}/signal"), request)
            .await
    }

    pub async fn resize(&self, job: &str, size: PtySize) -> Result<(), Failure> {
        self.tell(Method::POST, &format!("/jobs/{job}/resize"), &size)
            .await
    }

    /// Sends input, as fast as the command reads.
    pub async fn stdin(
        &self,
        job: &str,
        query: &StdinQuery,
        body: super::Body,
    ) -> Result<(), Failure> {
        let path = with_query(&format!("/jobs/{job}/stdin"), query)?;
        self.stream(Method::POST, &path, body).await.map(drop)
    }

    /// Kills whatever is left of a job and forgets it.
    pub async fn remove_job(&self, job: &str) -> Result<(), Failure> {
        self.tell(Method::DELETE, &format!("/jobs/{job}"), &())
            .await
    }

    pub async fn kernels(&self) -> Result<Vec<KernelInfo>, Failure> {
        self.get("/kernels", &()).await
    }

    pub async fn kernel(&self, kernel: &str) -> Result<KernelInfo, Failure> {
        self.get(&format!("/kernels/{kernel}"), &()).await
    }

    pub async fn remove_kernel(&self, kernel: &str) -> Result<(), Failure> {
        self.tell(Method::DELETE, &format!("/kernels/{kernel}"), &())
            .await
    }

    pub async fn interrupt(&self, kernel: &str) -> Result<(), Failure> {
        self.tell(Method::POST, &format!("/kernels/{kernel}/interrupt"), &())
            .await
    }
}
