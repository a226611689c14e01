//! Where a callback goes: a URL that can be called, and whether the rules allow it.

use super::address::forbidden;
use crate::config::CallbackRule;
use ringfence_core::{Code, Failure};
use std::net::{IpAddr, SocketAddr};
use url::{Host, Url};

/// Most bytes of a URL.
const LONGEST: usize = 8192;

/// A URL that can be called.
#[derive(Clone)]
pub(crate) struct Target {
    pub(super) url: Url,
    pub(super) host: Host<String>,
    pub(super) port: u16,
    pub(super) secure: bool,
}

impl Target {
    pub(crate) fn parse(text: &str) -> Result<Self, Failure> {
        let wrong = |what: &str| Failure::invalid(format!("callback_url {what}"));
        if text.is_empty() {
            return Err(wrong("is empty"));
        }
        if text.len() > LONGEST {
            return Err(wrong(&format!("is over {LONGEST} bytes")));
        }
        let mut url = Url::parse(text).map_err(|e| wrong(&format!("is not a URL: {e}")))?;
        let secure = match url.scheme() {
            "http" => false,
            "https" => true,
            _ => return Err(wrong("is neither http nor https")),
        };
        if !url.username().is_empty() || url.password().is_some() {
            return Err(wrong("carries a user: the token says who calls"));
        }
        url.set_fragment(None);
        let host = url.host().map(|host| host.to_owned());
        let (Some(host), Some(port)) = (host, url.port_or_known_default()) else {
            return Err(wrong("has no host"));
        };
        if port == 0 {
            return Err(wrong("has the port 0"));
        }
        Ok(Self {
            host,
            port,
            secure,
            url,
        })
    }

    /// The host as a URL shows it; the rest may be secret.
    pub(crate) fn shown(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }

    /// What to look up, or the address itself.
    pub(super) fn name(&self) -> Result<&str, IpAddr> {
        match &self.host {
            Host::Domain(name) => Ok(name),
            Host::Ipv4(address) => Err(IpAddr::V4(*address)),
            Host::Ipv6(address) => Err(IpAddr::V6(*address)),
        }
    }

    /// Whether all of these addresses may be called as this. One that may not spoils all: a name
    /// that also means something forbidden is no mistake.
    pub(super) fn check(
        &self,
        rules: &[CallbackRule],
        addresses: &[SocketAddr],
    ) -> Result<(), Failure> {
        for address in addresses {
            if let Some(why) = forbidden(address.ip()) {
                return Err(refused(
                    format!("callbacks to {} are not allowed: it is {why}", self.shown()),
                    "no rule allows link-local, metadata, multicast and unspecified addresses",
                ));
            }
        }
        let named = rules.iter().any(|rule| self.is_named(rule));
        let within = |address: &SocketAddr| rules.iter().any(|rule| contains(rule, address.ip()));
        let networks = || !addresses.is_empty() && addresses.iter().all(within);
        if rules.is_empty() || named || networks() {
            return Ok(());
        }
        Err(refused(
            format!("callbacks to {} are not allowed", self.shown()),
            "the server's configuration decides: policy.callbacks",
        ))
    }

    /// Whether only its addresses can tell.
    pub(super) fn depends_on_addresses(&self, rules: &[CallbackRule]) -> bool {
        let network = |rule: &CallbackRule| matches!(rule, CallbackRule::Network { .. });
        rules.iter().any(network)
    }

    fn is_named(&self, rule: &CallbackRule) -> bool {
        match rule {
            CallbackRule::Network { .. } => false,
            CallbackRule::Host(rule) => {
                let Ok(name) = self.name() else { return false };
                // A name with a dot at its end is the same name.
                let name = name.strip_suffix('.').unwrap_or(name);
                match rule.strip_prefix("*.") {
                    Some(above) => name
                        .strip_suffix(above)
                        .is_some_and(|start| start.len() > 1 && start.ends_with('.')),
                    None => name == rule,
                }
            }
            CallbackRule::Url(rule) => Url::parse(rule).is_ok_and(|rule| self.starts_with(&rule)),
        }
    }

    fn starts_with(&self, rule: &Url) -> bool {
        let same_place = rule.scheme() == self.url.scheme()
            && rule.host_str() == self.url.host_str()
            && rule.port_or_known_default() == self.url.port_or_known_default();
        let rest = self.url.path().strip_prefix(rule.path());
        // `/hooks` is the start of `/hooks/a`, and not of `/hooks-of-others`.
        let whole = rest.is_some_and(|rest| {
            rest.is_empty() || rest.starts_with('/') || rule.path().ends_with('/')
        });
        same_place && whole && (rule.query().is_none() || rule.query() == self.url.query())
    }
}

fn refused(message: String, hint: &str) -> Failure {
    Failure::new(Code::Forbidden, message).hint(hint)
}

fn contains(rule: &CallbackRule, address: IpAddr) -> bool {
    let CallbackRule::Network {
        address: network,
        bits,
    } = rule
    else {
        return false;
    };
    let bits = u32::from(*bits);
    match (network, address.to_canonical()) {
        (IpAddr::V4(network), IpAddr::V4(address)) => {
            let differs = network.to_bits() ^ address.to_bits();
            differs.leading_zeros() >= bits
        }
        (IpAddr::V6(network), IpAddr::V6(address)) => {
            let differs = network.to_bits() ^ address.to_bits();
            differs.leading_zeros() >= bits
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Value as _;

    fn allowed(rules: &[&str], url: &str, addresses: &[&str]) -> bool {
        let rules: Vec<_> = rules
            .iter()
            .map(|rule| CallbackRule::from_text(rule).unwrap())
            .collect();
        let addresses: Vec<_> = addresses
            .iter()
            .map(|a| SocketAddr::new(a.parse().unwrap(), 80))
            .collect();
        let target = Target::parse(url).unwrap();
        target.check(&rules, &addresses).is_ok()
    }

    #[test]
    fn urls_are_http_without_users() {
        for bad in [
            "",
            "x",
            "/path",
            "ftp://a.example/",
            "file:///etc/passwd",
            "unix:/run/x.sock",
            "http://",
            "http://u@a.example/",
            "http://u:p@a.example/",
            "http://:p@a.example/",
            "http://a.example:0/",
            "http://a b/",
            "http://a.example:99999/",
        ] {
            assert!(Target::parse(bad).is_err(), "{bad}");
        }
        assert!(Target::parse(&format!("http://a/{}", "x".repeat(9000))).is_err());
        // Every way to write an address is that address.
        for odd in [
            "http://2852039166/",
            "http://0xa9.0xfea9fe/",
            "http://0251.254.169.254/",
        ] {
            let target = Target::parse(odd).unwrap();
            assert_eq!(
                target.name(),
                Err("169.254.169.254".parse().unwrap()),
                "{odd}"
            );
        }
    }

    #[test]
    fn without_rules_all_but_the_forbidden() {
        assert!(allowed(
            &[],
            "http://a.example/",
            &["10.0.0.1", "127.0.0.1"]
        ));
        assert!(!allowed(
            &[],
            "http://a.example/",
            &["10.0.0.1", "169.254.169.254"]
        ));
        assert!(!allowed(
            &["a.example"],
            "http://a.example/",
            &["169.254.169.254"]
        ));
        assert!(!allowed(
            &["169.254.0.0/16"],
            "http://a.example/",
            &["169.254.169.254"]
        ));
    }

    #[test]
    fn rules_name_hosts_networks_and_urls() {
        let at = &["10.1.2.3"];
        for (rule, url, good) in [
            ("a.example", "http://a.example/x", true),
            ("a.example", "https://A.example.:444/x", true),
            ("a.example", "http://b.a.example/", false),
            ("a.example", "http://a.example.evil/", false),
            ("*.a.example", "http://b.a.example/", true),
            ("*.a.example", "http://c.b.a.example/", true),
            ("*.a.example", "http://a.example/", false),
            ("*.a.example", "http://ba.example/", false),
            ("10.0.0.0/8", "http://a.example/", true),
            ("10.1.2.3", "http://a.example/", true),
            ("10.1.2.4", "http://a.example/", false),
            ("11.0.0.0/8", "http://a.example/", false),
            ("0.0.0.0/0", "http://a.example/", true),
            ("::/0", "http://a.example/", false),
            ("https://a.example", "https://a.example/x?y", true),
            ("https://a.example", "https://a.example:443/", true),
            ("https://a.example", "http://a.example/", false),
            ("https://a.example", "https://a.example:444/", false),
            ("https://a.example", "https://a.example.evil/", false),
            ("https://a.example/hooks", "https://a.example/hooks", true),
            (
                "https://a.example/hooks",
                "https://a.example/hooks/1?q",
                true,
            ),
            (
                "https://a.example/hooks",
                "https://a.example/hooks-evil",
                false,
            ),
            (
                "https://a.example/hooks/",
                "https://a.example/hooks/1",
                true,
            ),
            (
                "https://a.example/hooks/",
                "https://a.example/hooks/../x",
                false,
            ),
            (
                "https://a.example/hooks/",
                "https://a.example/hooks/%2e%2e/x",
                false,
            ),
        ] {
            assert_eq!(allowed(&[rule], url, at), good, "{rule} {url}");
        }
        // All of its addresses, in whichever of the networks; loopback too has to be named.
        let both = &["10.0.0.0/8", "127.0.0.0/8"];
        assert!(allowed(
            both,
            "http://a.example/",
            &["10.0.0.1", "127.0.0.1"]
        ));
        assert!(allowed(both, "http://a.example/", &["::ffff:10.0.0.1"]));
        assert!(!allowed(
            &both[..1],
            "http://a.example/",
            &["10.0.0.1", "127.0.0.1"]
        ));
        assert!(!allowed(both, "http://a.example/", &[]));
        assert!(!allowed(
            &["b.example", "11.0.0.0/8"],
            "http://a.example/",
            at
        ));
    }
}
