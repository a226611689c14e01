//! Skills: folders of instructions for agents, each with a `SKILL.md`, seen inside read-only.

use crate::spec::{Access, MountSpec};
use ringfence_proto::{Code, Failure};
use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};

/// Where skills are in a sandbox, a folder each.
pub const PLACE: &str = "/sandbox/skills";

/// The file that makes a folder a skill.
pub const FILE: &str = "SKILL.md";

/// Most bytes of a `SKILL.md`.
const LONGEST: u64 = 1 << 20;

/// A skill of the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Skill {
    /// The name of its folder, here and inside.
    pub name: String,
    /// What its front matter calls it; the name of its folder where that says nothing.
    pub title: String,
    /// When to use it, as its front matter says; empty where that says nothing.
    pub description: String,
    /// Its folder, links resolved.
    pub folder: PathBuf,
}

impl Skill {
    /// The whole `SKILL.md`.
    pub fn text(&self) -> Result<String, Failure> {
        read(&self.folder.join(FILE))
    }

    /// Where it is in a sandbox.
    pub fn inside(&self) -> PathBuf {
        Path::new(PLACE).join(&self.name)
    }

    /// Puts it there.
    pub fn mount(&self) -> MountSpec {
        MountSpec {
            from: self.folder.clone(),
            to: self.inside(),
            access: Access::ReadOnly,
        }
    }
}

/// The skills of an agent, in the folder of its name below `root`; none where there is no such
/// folder. A link that leads out of the root is refused.
pub fn of_agent(root: &Path, agent: &str) -> Result<Vec<Skill>, Failure> {
    check_agent(agent)?;
    let root = real(root)?;
    match real(&root.join(agent)) {
        Ok(folder) => beneath(&root, &folder),
        Err(failure) if failure.code == Code::NotFound => Ok(Vec::new()),
        Err(failure) => Err(failure),
    }
}

/// The skills directly in a folder, by name. Folders without a `SKILL.md` and hidden ones are
/// none; a link that leads out of the folder is refused.
pub fn list(folder: &Path) -> Result<Vec<Skill>, Failure> {
    let folder = real(folder)?;
    beneath(&folder, &folder)
}

fn beneath(root: &Path, folder: &Path) -> Result<Vec<Skill>, Failure> {
    check_inside(root, folder, folder)?;
    let unread = |e| Failure::io(format!("cannot read {}", folder.display()), &e);
    let mut skills = Vec::new();
    for entry in fs::read_dir(folder).map_err(unread)? {
        let name = entry.map_err(unread)?.file_name();
        let path = folder.join(&name);
        if name.as_encoded_bytes().starts_with(b".") || !path.is_dir() {
            continue;
        }
        let skill = real(&path)?;
        check_inside(root, &path, &skill)?;
        let file = match real(&skill.join(FILE)) {
            Ok(file) => file,
            Err(failure) if failure.code == Code::NotFound => continue,
            Err(failure) => return Err(failure),
        };
        check_inside(root, &skill.join(FILE), &file)?;
        let name = check_name(&name.to_string_lossy(), &path)?;
        let matter = front_matter(&read(&file)?);
        skills.push(Skill {
            title: matter.name.unwrap_or_else(|| name.clone()),
            description: matter.description.unwrap_or_default(),
            name,
            folder: skill,
        });
    }
    skills.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(skills)
}

fn real(path: &Path) -> Result<PathBuf, Failure> {
    path.canonicalize()
        .map_err(|e| Failure::io(format!("cannot read {}", path.display()), &e))
}

fn check_inside(root: &Path, path: &Path, real: &Path) -> Result<(), Failure> {
    if real.starts_with(root) {
        return Ok(());
    }
    let message = format!(
        "cannot use the skill {}: it leads out of {}",
        path.display(),
        root.display()
    );
    Err(Failure::new(Code::Forbidden, message).hint("put the folder itself there, not a link"))
}

/// An agent's name becomes a part of a path.
fn check_agent(name: &str) -> Result<(), Failure> {
    let good = (1..=128).contains(&name.len())
        && !name.starts_with('.')
        && !name.contains(|c: char| c == '/' || c == '\\' || c.is_control());
    match good {
        true => Ok(()),
        false => Err(Failure::invalid(
            "an agent's name has 1 to 128 bytes, without `/`, `\\` and control characters, and \
             does not start with a dot",
        )),
    }
}

/// The name becomes a path inside.
fn check_name(name: &str, path: &Path) -> Result<String, Failure> {
    let good = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    if name.len() <= 64 && name.chars().all(good) {
        return Ok(name.to_owned());
    }
    let message = format!(
        "cannot use the skill {}: its folder's name has at most 64 letters, digits, `.`, `_` and `-`",
        path.display()
    );
    Err(Failure::invalid(message))
}

fn read(file: &Path) -> Result<String, Failure> {
    let failed = |e| Failure::io(format!("cannot read {}", file.display()), &e);
    let refused = |why| Failure::invalid(format!("cannot read {}: {why}", file.display()));
    // A fifo would be waited for.
    if !fs::metadata(file).map_err(failed)?.is_file() {
        return Err(refused("it is not a regular file"));
    }
    let mut bytes = Vec::new();
    let opened = fs::File::open(file).map_err(failed)?;
    opened
        .take(LONGEST + 1)
        .read_to_end(&mut bytes)
        .map_err(failed)?;
    if bytes.len() as u64 > LONGEST {
        return Err(refused("it is over 1 MiB"));
    }
    String::from_utf8(bytes).map_err(|_| refused("it is not UTF-8"))
}

/// What a `SKILL.md` says about itself.
#[derive(Debug, Default, PartialEq, Eq)]
struct Matter {
    name: Option<String>,
    description: Option<String>,
}

/// Reads the two values that matter, in the forms of YAML that people write them in: plain,
/// quoted, over several lines, or as a block. Anything else in there is passed over.
fn front_matter(text: &str) -> Matter {
    let mut matter = Matter::default();
    let mut lines = text.trim_start_matches('\u{feff}').lines().peekable();
    if lines.next().map(str::trim_end) != Some("---") {
        return matter;
    }
    while let Some(line) = lines.next() {
        if matches!(line.trim_end(), "---" | "...") {
            return matter;
        }
        let Some((key, value)) = line.split_once(':') else {
            continue;
        };
        let mut more = Vec::new();
        while let Some(next) = lines.next_if(|l| l.starts_with([' ', '\t']) || l.is_empty()) {
            more.push(next.trim());
        }
        let slot = match key {
            "name" => &mut matter.name,
            "description" => &mut matter.description,
            _ => continue,
        };
        *slot = Some(scalar(value.trim(), &more)).filter(|text| !text.is_empty());
    }
    // The end is missing: this is a text that begins with a rule.
    Matter::default()
}

/// A value and the indented lines that follow it.
fn scalar(first: &str, more: &[&str]) -> String {
    let folded = |lines: &[&str]| {
        let words = lines.iter().filter(|line| !line.is_empty());
        words.copied().collect::<Vec<_>>().join(" ")
    };
    match first.chars().next() {
        Some('|') => more.join("\n").trim_end().to_owned(),
        Some('>') => folded(more),
        _ => {
            let whole = folded(&[&[first], more].concat());
            let inner = |quote: char| {
                let rest = whole.strip_prefix(quote)?;
                rest.strip_suffix(quote)
            };
            if let Some(text) = inner('"') {
                // JSON's escapes are a part of YAML's.
                let quoted = format!("\"{text}\"");
                return serde_json::from_str(&quoted).unwrap_or_else(|_| text.to_owned());
            }
            if let Some(text) = inner('\'') {
                return text.replace("''", "'");
            }
            let comment = whole.find(" #").unwrap_or(whole.len());
            whole[..comment].trim_end().to_owned()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn matter(text: &str) -> (Option<String>, Option<String>) {
        let Matter { name, description } = front_matter(text);
        (name, description)
    }

    #[test]
    fn front_matter_is_read_as_people_write_it() {
        let some = |text: &str| Some(text.to_owned());
        for (text, name, description) in [
            (
                "---\nname: pdf\ndescription: Reads PDFs. # yes\n---\n# PDF",
                some("pdf"),
                some("Reads PDFs."),
            ),
            (
                "---\nname: \"p: \\\"d\\\"\"\ndescription: 'it''s'\n---\n",
                some("p: \"d\""),
                some("it's"),
            ),
            (
                "---\ndescription: >-\n  one\n  two\n\n  three\nname: x\n---\n",
                some("x"),
                some("one two three"),
            ),
            (
                "---\ndescription: |\n  one\n  two\nmetadata:\n  name: inner\n---\n",
                None,
                some("one\ntwo"),
            ),
            (
                "---\r\nname: dos\r\ndescription: one\r\n  two\r\n---\r\n",
                some("dos"),
                some("one two"),
            ),
            ("---\nname: never closed\n", None, None),
            ("# no front matter\nname: x\n", None, None),
            ("", None, None),
        ] {
            assert_eq!(matter(text), (name, description), "{text:?}");
        }
    }

    fn skill(folder: &Path, name: &str, text: &str) -> PathBuf {
        let path = folder.join(name);
        fs::create_dir_all(&path).unwrap();
        fs::write(path.join(FILE), text).unwrap();
        path
    }

    #[test]
    fn an_agents_skills_are_the_folders_with_a_skill_md() {
        let dir = tempfile::tempdir().unwrap();
        let agent = dir.path().join("agent one");
        skill(&agent, "pdf", "---\nname: PDF\ndescription: Reads.\n---\n");
        skill(&agent, "csv", "only text");
        skill(&agent, ".hidden", "");
        skill(dir.path(), "other/xls", "");
        fs::create_dir(agent.join("empty")).unwrap();
        fs::write(agent.join("file"), "").unwrap();
        // One of another agent is still below the root.
        symlink("../other/xls", agent.join("linked")).unwrap();
        let skills = of_agent(dir.path(), "agent one").unwrap();
        let names: Vec<&str> = skills.iter().map(|s| s.name.as_str()).collect();
        assert_eq!(names, ["csv", "linked", "pdf"]);
        assert_eq!(
            (skills[2].title.as_str(), skills[2].description.as_str()),
            ("PDF", "Reads.")
        );
        assert_eq!(skills[0].title, "csv");
        assert_eq!(skills[0].text().unwrap(), "only text");
        assert_eq!(skills[2].mount().to, Path::new("/sandbox/skills/pdf"));
        assert_eq!(skills[2].mount().access, Access::ReadOnly);
        assert_eq!(of_agent(dir.path(), "nobody").unwrap(), []);
        assert_eq!(list(&agent).unwrap_err().code, Code::Forbidden);
    }

    #[test]
    fn nothing_leads_out_of_the_root() {
        let dir = tempfile::tempdir().unwrap();
        let (root, outside) = (dir.path().join("root"), dir.path().join("outside"));
        skill(&outside, "secret", "x");
        skill(&root.join("a"), "good", "x");
        assert_eq!(of_agent(&root, "a").unwrap().len(), 1);
        for bad in [
            "",
            ".",
            "..",
            "../outside",
            "a/good",
            "a\\b",
            ".git",
            "a\nb",
        ] {
            assert_eq!(
                of_agent(&root, bad).unwrap_err().code,
                Code::InvalidInput,
                "{bad:?}"
            );
        }
        symlink(&outside, root.join("b")).unwrap();
        assert_eq!(of_agent(&root, "b").unwrap_err().code, Code::Forbidden);
        symlink(outside.join("secret"), root.join("a/linked")).unwrap();
        assert_eq!(of_agent(&root, "a").unwrap_err().code, Code::Forbidden);
        fs::remove_file(root.join("a/linked")).unwrap();
        fs::remove_file(root.join("a/good").join(FILE)).unwrap();
        symlink(
            outside.join("secret").join(FILE),
            root.join("a/good").join(FILE),
        )
        .unwrap();
        assert_eq!(of_agent(&root, "a").unwrap_err().code, Code::Forbidden);
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = skill(dir.path(), "big", &"x".repeat(LONGEST as usize + 1));
        assert!(
            list(dir.path())
                .unwrap_err()
                .message
                .ends_with("big/SKILL.md: it is over 1 MiB")
        );
        fs::write(path.join(FILE), [0xff]).unwrap();
        assert!(
            list(dir.path())
                .unwrap_err()
                .message
                .ends_with("it is not UTF-8")
        );
        fs::remove_dir_all(&path).unwrap();
        skill(dir.path(), "two words", "");
        assert_eq!(list(dir.path()).unwrap_err().code, Code::InvalidInput);
        assert_eq!(
            list(&dir.path().join("none")).unwrap_err().code,
            Code::NotFound
        );
    }
}
