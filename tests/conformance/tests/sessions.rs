//! The session manager, on the backend in this process: what holds for every backend alike.

use async_trait::async_trait;
use ringfence_conformance::Fake;
use ringfence_core::backend::{Io, SandboxInfo};
use ringfence_core::plan::{Guarantees, Limits, Plan, SandboxId};
use ringfence_core::proto::{KernelRequest, RunRequest};
use ringfence_core::sessions::{Found, NewSession, OnIdle, Owner, Quotas, Reaped, Terms};
use ringfence_core::spec::SandboxSpec;
use ringfence_core::{Backend, Code, Failure, Session, Sessions, Size};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

type Outcome = Result<(), Box<dyn std::error::Error>>;

fn quotas() -> Quotas {
    Quotas {
        sessions: 100,
        per_owner: None,
        memory: None,
    }
}

fn new() -> NewSession {
    NewSession {
        owner: None,
        key: None,
        spec: SandboxSpec::default(),
        limits: Limits::default(),
        terms: Terms {
            idle_timeout: 900.0,
            max_lifetime: 7200.0,
            on_idle: OnIdle::Destroy,
        },
        kernel: Some(KernelRequest::default()),
    }
}

fn keyed(key: &str) -> NewSession {
    NewSession {
        key: Some(key.to_owned()),
        ..new()
    }
}

fn owned(name: &str) -> NewSession {
    NewSession {
        owner: Some(Owner {
            name: name.to_owned(),
            sessions: Some(1),
            memory: None,
        }),
        ..new()
    }
}

async fn run(session: &Session, code: &str) -> Result<String, Box<dyn std::error::Error>> {
    let request = RunRequest {
        code: code.to_owned(),
        ..RunRequest::default()
    };
    let done = session.guest().await?.run("main", &request).await?;
    Ok(done.stdout.data.text().into_owned() + &done.stderr.data.text())
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_who_want_the_same_key_get_one_session() -> Outcome {
    let backend: Arc<dyn Backend> = Arc::new(Fake::default());
    // Two servers before one engine.
    let servers = [
        Sessions::new(Arc::clone(&backend), quotas()),
        Sessions::new(Arc::clone(&backend), quotas()),
    ];
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..50 {
        let sessions = Arc::clone(&servers[number % 2]);
        tasks.spawn(async move { sessions.create(keyed("conversation")).await });
    }
    let mut ids = std::collections::BTreeSet::new();
    let mut made = 0;
    while let Some(done) = tasks.join_next().await {
        let (session, found) = done??;
        made += usize::from(found == Found::Made);
        ids.insert(session.id.clone());
    }
    assert_eq!((ids.len(), made), (1, 1));
    assert_eq!(backend.list().await?.len(), 1);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn another_server_finds_variables_files_and_terms() -> Outcome {
    let backend: Arc<dyn Backend> = Arc::new(Fake::default());
    let first = Sessions::new(Arc::clone(&backend), quotas());
    let (session, _) = first.create(new()).await?;
    run(&session, "x = 41; open('f', 'w').write('kept')").await?;
    session
        .change_terms(|terms| terms.idle_timeout = 5.0)
        .await?;
    session.set_note("who", "me".to_owned()).await?;
    let id = session.id.clone();
    drop((session, first));
    let second = Sessions::new(Arc::clone(&backend), quotas());
    let session = second.get(&id).await?;
    assert_eq!(
        run(&session, "print(x + 1, open('f').read())").await?,
        "42 kept\n"
    );
    assert_eq!(session.terms().idle_timeout, 5.0);
    assert_eq!(session.note("who").as_deref(), Some("me"));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_idle_or_too_old_ends_and_what_is_in_use_does_not() -> Outcome {
    let backend: Arc<dyn Backend> = Arc::new(Fake::default());
    let sessions = Sessions::new(Arc::clone(&backend), quotas());
    let short = |idle_timeout, max_lifetime| NewSession {
        terms: Terms {
            idle_timeout,
            max_lifetime,
            on_idle: OnIdle::Destroy,
        },
        ..new()
    };
    let (idle, _) = sessions.create(short(0.0, 7200.0)).await?;
    let (old, _) = sessions.create(short(900.0, 0.0)).await?;
    let (busy, _) = sessions.create(short(0.0, 7200.0)).await?;
    let (fresh, _) = sessions.create(new()).await?;
    let working = tokio::spawn({
        let busy = Arc::clone(&busy);
        async move {
            let request = RunRequest {
                code: "import time\nwhile True: time.sleep(0.01)".to_owned(),
                ..RunRequest::default()
            };
            let guest = busy.guest().await?;
            guest.run("main", &request).await
        }
    });
    // The guest says so, not this server: nothing here began a use.
    while busy.guest().await?.health().await?.jobs == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let mut reaped = sessions.reap().await?;
    reaped.sort_by(|a, b| a.0.cmp(&b.0));
    let mut expected = vec![
        (idle.id.clone(), Reaped::Idle),
        (old.id.clone(), Reaped::Expired),
    ];
    expected.sort_by(|a, b| a.0.cmp(&b.0));
    assert_eq!(reaped, expected);
    assert!(sessions.get(&fresh.id).await.is_ok());
    assert!(sessions.get(&busy.id).await.is_ok());
    let gone = sessions.get(&idle.id).await.err().map(|f| f.code);
    assert_eq!(gone, Some(Code::NotFound));
    sessions.remove(&busy.id).await?;
    // It ends, by a failure or by a certificate: nobody waits for what is gone.
    let ended = working.await?;
    assert!(ended.is_err() || ended.is_ok_and(|done| done.end.certificate.is_some()));
    Ok(())
}

/// What others do at the moment at which a guest is dialled, which then fails.
enum Meddling {
    /// The guest does not answer.
    Silent,
    /// Another server removes the sandbox.
    Removed,
    /// And then one has made another session with its key.
    Replaced,
}

/// Others use the same engine, and meddle when they are told to.
#[derive(Default)]
struct Meddled {
    fake: Fake,
    dials: AtomicUsize,
    meddling: Mutex<VecDeque<Meddling>>,
    /// The list lacks everything.
    unlisted: AtomicBool,
}

impl Meddled {
    fn meddling(&self) -> MutexGuard<'_, VecDeque<Meddling>> {
        self.meddling.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn expect(&self, meddling: impl IntoIterator<Item = Meddling>) {
        self.meddling().extend(meddling);
    }

    async fn replace(&self, id: &SandboxId) -> Result<(), Failure> {
        let found = self.fake.find(id).await?;
        self.fake.destroy(id).await?;
        let Some(SandboxInfo { mut plan, .. }) = found else {
            return Ok(());
        };
        for label in plan.labels.values_mut() {
            if let Ok(mut session) = label.parse::<serde_json::Value>() {
                session["created"]["wall"] = ANEW.into();
                *label = session.to_string();
            }
        }
        self.fake.create(&plan).await.map(drop)
    }
}

/// When a session was made that took another's place.
const ANEW: f64 = 1.0;

#[async_trait]
impl Backend for Meddled {
    async fn guarantees(&self) -> Result<Guarantees, Failure> {
        self.fake.guarantees().await
    }
    async fn create(&self, plan: &Plan) -> Result<SandboxInfo, Failure> {
        self.fake.create(plan).await
    }
    async fn dial(&self, id: &SandboxId) -> Result<Box<dyn Io>, Failure> {
        self.dials.fetch_add(1, Ordering::Relaxed);
        let next = self.meddling().pop_front();
        match next {
            None => return self.fake.dial(id).await,
            Some(Meddling::Silent) => {}
            Some(Meddling::Removed) => self.fake.destroy(id).await?,
            Some(Meddling::Replaced) => self.replace(id).await?,
        }
        Err(Failure::new(Code::Unavailable, "others meddled"))
    }
    async fn suspend(&self, id: &SandboxId) -> Result<(), Failure> {
        self.fake.suspend(id).await
    }
    async fn destroy(&self, id: &SandboxId) -> Result<(), Failure> {
        self.fake.destroy(id).await
    }
    async fn annotate(&self, id: &SandboxId, name: &str, value: &str) -> Result<(), Failure> {
        self.fake.annotate(id, name, value).await
    }
    async fn list(&self) -> Result<Vec<SandboxInfo>, Failure> {
        match self.unlisted.load(Ordering::Relaxed) {
            true => Ok(Vec::new()),
            false => self.fake.list().await,
        }
    }
    async fn find(&self, id: &SandboxId) -> Result<Option<SandboxInfo>, Failure> {
        self.fake.find(id).await
    }
}

/// A server before 100,000 sessions could not ask all of them at each look.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_is_asked_again_when_it_may_be_idle_and_not_before() -> Outcome {
    let counted = Arc::new(Meddled::default());
    let backend: Arc<dyn Backend> = Arc::clone(&counted) as _;
    let first = Sessions::new(Arc::clone(&backend), quotas());
    let (session, _) = first.create(new()).await?;
    let second = Sessions::new(backend, quotas());
    let before = counted.dials.load(Ordering::Relaxed);
    for _ in 0..3 {
        assert_eq!(second.reap().await?, []);
    }
    assert_eq!(counted.dials.load(Ordering::Relaxed) - before, 1);
    // What another server sets holds at the next look.
    session
        .change_terms(|terms| terms.idle_timeout = 0.0)
        .await?;
    let expected = [(session.id.clone(), Reaped::Idle)];
    assert_eq!(second.reap().await?, expected);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_others_fight_for_is_given_in_the_end() -> Outcome {
    let backend = Arc::new(Meddled::default());
    let sessions = Sessions::new(Arc::clone(&backend) as _, quotas());
    backend.expect([Meddling::Removed, Meddling::Removed]);
    let (session, found) = sessions.create(keyed("wanted")).await?;
    assert_eq!(found, Found::Made);
    assert_eq!(run(&session, "print(1)").await?, "1\n");
    // Another server finds it, just when somebody makes it anew.
    let second = Sessions::new(Arc::clone(&backend) as _, quotas());
    backend.expect([Meddling::Replaced]);
    let (session, found) = second.create(keyed("wanted")).await?;
    assert_eq!((found, session.created.wall), (Found::There, ANEW));
    assert_eq!(run(&session, "print(2)").await?, "2\n");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_with_the_key_of_an_old_one_has_terms_of_its_own() -> Outcome {
    let backend: Arc<dyn Backend> = Arc::new(Fake::default());
    let first = Sessions::new(Arc::clone(&backend), quotas());
    let second = Sessions::new(Arc::clone(&backend), quotas());
    let mut short = keyed("again");
    short.terms.max_lifetime = 0.0;
    let (old, _) = first.create(short).await?;
    let known = second.get(&old.id).await?;
    first.remove(&old.id).await?;
    let (new, found) = first.create(keyed("again")).await?;
    assert_eq!((found, &new.id), (Found::Made, &known.id));
    assert_eq!(second.reap().await?, []);
    assert!(known.is_closing());
    assert_eq!(run(&new, "print(1)").await?, "1\n");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn one_guest_that_does_not_answer_once_or_is_not_listed_is_not_ended() -> Outcome {
    let backend = Arc::new(Meddled::default());
    let first = Sessions::new(Arc::clone(&backend) as _, quotas());
    let mut new = new();
    new.terms.idle_timeout = 0.0;
    let (session, _) = first.create(new).await?;
    let second = Sessions::new(Arc::clone(&backend) as _, quotas());
    let known = second.get(&session.id).await?;
    backend.unlisted.store(true, Ordering::Relaxed);
    assert!(second.list().await?.is_empty());
    assert!(!known.is_closing());
    backend.unlisted.store(false, Ordering::Relaxed);
    backend.expect([Meddling::Silent]);
    assert_eq!(second.reap().await?, []);
    assert_eq!(run(&session, "print(1)").await?, "1\n");
    // One that stays silent is over in the end.
    backend.expect([Meddling::Silent]);
    assert_eq!(second.reap().await?, [(session.id.clone(), Reaped::Idle)]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_session_can_be_suspended_and_comes_back_with_its_files() -> Outcome {
    let backend: Arc<dyn Backend> = Arc::new(Fake::default());
    let sessions = Sessions::new(Arc::clone(&backend), quotas());
    let terms = Terms {
        idle_timeout: 0.0,
        max_lifetime: 7200.0,
        on_idle: OnIdle::Suspend,
    };
    let (session, _) = sessions.create(NewSession { terms, ..new() }).await?;
    run(&session, "x = 1; open('f', 'w').write('kept')").await?;
    assert_eq!(
        sessions.reap().await?,
        [(session.id.clone(), Reaped::Suspended)]
    );
    assert_eq!(sessions.reap().await?, []);
    assert_eq!(run(&session, "print(open('f').read())").await?, "kept\n");
    let news = session.take_news().ok_or("nobody was told")?;
    assert!(news.survived.files && !news.survived.variables);
    assert!(run(&session, "x").await?.contains("NameError"));
    assert_eq!(session.take_news(), None);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn quotas_hold_in_all_and_for_each_owner() -> Outcome {
    let backend: Arc<dyn Backend> = Arc::new(Fake::default());
    let few = Quotas {
        sessions: 3,
        ..quotas()
    };
    let sessions = Sessions::new(Arc::clone(&backend), few);
    let refused = |made: Result<_, ringfence_core::Failure>| {
        made.err()
            .map(|failure: ringfence_core::Failure| failure.code)
    };
    let (first, _) = sessions.create(owned("a")).await?;
    assert_eq!(
        refused(sessions.create(owned("a")).await),
        Some(Code::TooMany)
    );
    sessions.create(owned("b")).await?;
    sessions.create(new()).await?;
    assert_eq!(refused(sessions.create(new()).await), Some(Code::Full));
    sessions.remove(&first.id).await?;
    sessions.create(owned("a")).await?;
    let memory = Quotas {
        memory: Some(Size(3 << 30)),
        ..quotas()
    };
    let sessions = Sessions::new(Arc::new(Fake::default()), memory);
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let sessions = Arc::clone(&sessions);
        tasks.spawn(async move { sessions.create(new()).await.is_ok() });
    }
    let made = tasks.join_all().await;
    // Each has 1 GiB; also those that are made at the same moment count.
    assert_eq!(made.iter().filter(|made| **made).count(), 3);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn who_goes_away_while_a_session_is_made_leaves_none() -> Outcome {
    let backend: Arc<dyn Backend> = Arc::new(Fake::default());
    let sessions = Sessions::new(Arc::clone(&backend), quotas());
    let asking = tokio::spawn({
        let sessions = Arc::clone(&sessions);
        async move { sessions.create(new()).await.map(drop) }
    });
    while backend.list().await?.is_empty() && !asking.is_finished() {
        tokio::task::yield_now().await;
    }
    asking.abort();
    if asking.await.is_ok() {
        // It was made before anybody could go away.
        return Ok(());
    }
    while !backend.list().await?.is_empty() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok(())
}
