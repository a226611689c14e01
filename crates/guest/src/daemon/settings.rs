//! What a stand-alone daemon is told by its environment.

use std::path::PathBuf;
use std::time::Duration;

/// How a stand-alone daemon is set up.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct DaemonSettings {
    pub port: u16,
    /// Files are below it, and commands start in it.
    pub root: PathBuf,
    /// It ends after so long without a request or a command.
    pub idle: Option<Duration>,
}

impl DaemonSettings {
    /// Reads `SANDBOX_PORT`, `SANDBOX_ROOT` and `SANDBOX_IDLE_TIMEOUT`; empty counts as unset.
    pub(crate) fn read(env: &[(String, String)]) -> Result<Self, String> {
        let value = |name: &str| {
            let found = env.iter().find(|(known, _)| known == name);
            found
                .map(|(_, value)| value.as_str())
                .filter(|v| !v.is_empty())
        };
        let port = match value("SANDBOX_PORT") {
            None => 8080,
            Some(text) => text
                .parse()
                .ok()
                .filter(|port| *port > 0)
                .ok_or_else(|| format!("SANDBOX_PORT is `{text}`: it must be 1 to 65535"))?,
        };
        let root = PathBuf::from(value("SANDBOX_ROOT").unwrap_or("/sandbox/workspace"));
        if !root.is_absolute() {
            let shown = root.display();
            return Err(format!("SANDBOX_ROOT is `{shown}`: it must be absolute"));
        }
        let idle = match value("SANDBOX_IDLE_TIMEOUT") {
            None => None,
            Some(text) => Some(
                text.parse()
                    .ok()
                    .filter(|seconds| (1..=365 * 86_400).contains(seconds))
                    .map(Duration::from_secs)
                    .ok_or_else(|| {
                        format!("SANDBOX_IDLE_TIMEOUT is `{text}`: it must be 1 or more seconds")
                    })?,
            ),
        };
        Ok(Self { port, root, idle })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(values: &[(&str, &str)]) -> Result<DaemonSettings, String> {
        let env: Vec<(String, String)> = values
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        DaemonSettings::read(&env)
    }

    #[test]
    fn the_environment_is_read_with_its_defaults() {
        let usual = DaemonSettings {
            port: 8080,
            root: "/sandbox/workspace".into(),
            idle: None,
        };
        assert_eq!(read(&[]), Ok(usual));
        let other = DaemonSettings {
            port: 9000,
            root: "/work".into(),
            idle: Some(Duration::from_secs(90)),
        };
        let given = [
            ("SANDBOX_PORT", "9000"),
            ("SANDBOX_ROOT", "/work"),
            ("SANDBOX_IDLE_TIMEOUT", "90"),
        ];
        assert_eq!(read(&given), Ok(other));
        assert_eq!(
            read(&[("SANDBOX_PORT", ""), ("SANDBOX_IDLE_TIMEOUT", "")]),
            read(&[])
        );
    }

    #[test]
    fn what_means_nothing_is_refused() {
        for bad in [
            ("SANDBOX_PORT", "0"),
            ("SANDBOX_PORT", "65536"),
            ("SANDBOX_PORT", "http"),
            ("SANDBOX_ROOT", "work"),
            ("SANDBOX_IDLE_TIMEOUT", "0"),
            ("SANDBOX_IDLE_TIMEOUT", "soon"),
        ] {
            let refusal = read(&[bad]).unwrap_err();
            assert!(refusal.starts_with(bad.0), "{refusal}");
        }
    }
}
