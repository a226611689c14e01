//! Keys that open one session only.

use super::{BYTES, file, unhex};
use hmac::{Hmac, KeyInit as _, Mac as _};
use ringfence_core::{Code, Failure, SessionId, hex, random, random_hex};
use sha2::Sha256;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::Path;

/// Its dot keeps it from being the id of a sandbox, which a sweep could remove.
const SECRET: &str = "session.secret";
const PREFIX: &str = "rfs_";
/// Sets these apart from whatever else may be made from the secret one day.
const PURPOSE: &[u8] = b"ringfence session key\0";

/// Makes the key of a session from its id and a secret of the state folder. Nothing is kept for a
/// session, and all servers on one state folder agree.
#[derive(Clone)]
pub(crate) struct SessionKeys {
    /// Has taken in the secret and the purpose.
    start: Hmac<Sha256>,
}

impl SessionKeys {
    /// Reads the secret, or makes it.
    pub(crate) fn open(state_dir: &Path) -> Result<Self, Failure> {
        let secret = match read(state_dir)? {
            Some(secret) => secret,
            None => make(state_dir)?,
        };
        let mut start = Hmac::<Sha256>::new_from_slice(&secret)
            .map_err(|e| Failure::new(Code::Internal, "cannot use the secret").detail(e))?;
        start.update(PURPOSE);
        Ok(Self { start })
    }

    /// The key that opens this session. It says which one that is, so that nothing has to be looked
    /// for; the id alone opens nothing.
    pub(crate) fn of(&self, session: &SessionId) -> String {
        let code = self.start.clone().chain_update(session.as_str()).finalize();
        format!("{PREFIX}{}{}", session.digits(), hex(code.into_bytes()))
    }

    /// The session that this key opens; how long it takes tells nothing of the right one.
    pub(crate) fn session(&self, presented: &str) -> Option<SessionId> {
        let (digits, code) = presented
            .strip_prefix(PREFIX)?
            .split_at_checked(SessionId::DIGITS)?;
        let session = SessionId::of_digits(digits)?;
        let code = unhex(code)?;
        let right = self.start.clone().chain_update(session.as_str());
        right.verify_slice(&code).ok().map(|()| session)
    }
}

/// The secret, where there is one.
fn read(state: &Path) -> Result<Option<[u8; BYTES]>, Failure> {
    let path = state.join(SECRET);
    let what = || format!("cannot read the secret in {}", path.display());
    let file = match File::open(&path) {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(Failure::io(what(), &e)),
    };
    let mode = file.metadata().map_err(|e| Failure::io(what(), &e))?.mode();
    let mut bytes = Vec::new();
    file.take(BYTES as u64 + 1)
        .read_to_end(&mut bytes)
        .map_err(|e| Failure::io(what(), &e))?;
    let renew = format!("remove {}: keys of sessions change then", path.display());
    if mode & 0o077 != 0 {
        return Err(
            Failure::new(Code::Forbidden, format!("{}: others can too", what())).hint(renew),
        );
    }
    let secret = bytes.try_into().map_err(|_| {
        Failure::new(
            Code::Internal,
            format!("{}: it is not {BYTES} bytes", what()),
        )
        .hint(renew)
    })?;
    Ok(Some(secret))
}

/// Makes the secret. Of several servers at once one wins, and all take what that one made: a link
/// fails where something is, and what it puts there is whole.
fn make(state: &Path) -> Result<[u8; BYTES], Failure> {
    let what = || format!("cannot make {}", state.join(SECRET).display());
    let secret = random::<BYTES>()?;
    let own = format!("{SECRET}.{}", random_hex::<8>()?);
    let made = fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(state)
        .and_then(|()| {
            let mut file = file::private(state, &own, OpenOptions::new().create_new(true))?;
            file.write_all(&secret)?;
            file.sync_all()?;
            fs::hard_link(state.join(&own), state.join(SECRET))
        });
    let _ = fs::remove_file(state.join(&own));
    match made {
        Ok(()) => {}
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
        Err(e) => return Err(Failure::io(what(), &e)),
    }
    let gone = io::Error::from(io::ErrorKind::NotFound);
    read(state)?.ok_or_else(|| Failure::io(what(), &gone))
}
