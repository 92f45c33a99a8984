//! The differences between the records that `differences.txt` allows, with their reasons.

use std::collections::BTreeMap;

const ALLOWED: &str = include_str!("differences.txt");

/// The device whose record is compared with the recorded kernel's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Who {
    /// The character-device front end.
    Soft,
    /// Another kernel, by the first two numbers of its release.
    Kernel(String),
}

impl Who {
    pub(crate) fn of_release(release: &str) -> Self {
        Self::Kernel(release.trim().split('.').take(2).collect::<Vec<_>>().join("."))
    }

    fn is_named(&self, word: &str) -> bool {
        match self {
            Self::Soft => word == "soft",
            Self::Kernel(version) => word == version,
        }
    }
}

/// The entries for one front end and one kind of port.
pub(crate) struct Differences {
    /// Patterns of names; `*` matches anything.
    allowed: Vec<&'static str>,
}

impl Differences {
    pub(crate) fn new(who: Who, link: &str) -> Self {
        let allowed = entries().filter(|(entry, _)| {
            let (front, port) = entry.split_once('-').unwrap_or((entry, link));
            who.is_named(front) && port == link
        });
        Self { allowed: allowed.map(|(_, pattern)| pattern).collect() }
    }

    fn of(&self, name: &str) -> Option<&'static str> {
        self.allowed.iter().copied().find(|pattern| matches(pattern, name))
    }

    /// Panics if a line differs without an entry, or if an entry is not needed, and lists all of
    /// these.
    pub(crate) fn check(&self, kernel: &str, other: &str) {
        let (kernel, other) = (lines(kernel), lines(other));
        let mut wrong = Vec::new();
        let mut unused = self.allowed.clone();
        let names = kernel.keys().chain(other.keys().filter(|name| !kernel.contains_key(*name)));
        for name in names {
            let (was, is) = (kernel.get(name), other.get(name));
            if was == is {
                continue;
            }
            match self.of(name) {
                Some(pattern) => unused.retain(|entry| *entry != pattern),
                None => wrong.push(format!(
                    "{name}: the kernel {}, here {}",
                    was.copied().unwrap_or("has none"),
                    is.copied().unwrap_or("none")
                )),
            }
        }
        wrong.extend(unused.iter().map(|pattern| format!("{pattern}: no longer differs")));
        assert!(wrong.is_empty(), "{} differences:\n{}", wrong.len(), wrong.join("\n"));
    }
}

/// Whether `name` matches `pattern`, in which `*` matches anything.
fn matches(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((beginning, rest)) => name.strip_prefix(beginning).is_some_and(|name| {
            (0..=name.len()).any(|at| name.is_char_boundary(at) && matches(rest, &name[at..]))
        }),
    }
}

/// Lines by name.
fn lines(record: &str) -> BTreeMap<&str, &str> {
    record.lines().filter_map(|line| line.split_once(" = ")).collect()
}

/// `who | name | reason`; lines that begin with `#` are comments.
fn entries() -> impl Iterator<Item = (&'static str, &'static str)> {
    ALLOWED.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty()).map(|line| {
        let mut words = line.splitn(3, " | ").map(str::trim);
        let (Some(who), Some(name), Some(reason)) = (words.next(), words.next(), words.next())
        else {
            panic!("differences.txt: not `who | name | reason`: {line}");
        };
        assert!(!reason.is_empty(), "{line}");
        (who, name)
    })
}

#[test]
fn differences_without_a_reason_and_reasons_without_a_difference_are_reported() {
    let differences = Differences { allowed: vec!["b*", "c"] };
    differences.check("a = 1\nb.x = 1\nc = 2\n", "a = 1\nb.x = 2\nc = 3\n");
    for (kernel, other, expected) in [
        ("a = 1\nb = 1\nc = 1\n", "a = 2\nb = 2\nc = 2\n", "a: the kernel 1, here 2"),
        ("a = 1\nb = 1\nc = 1\n", "b = 2\nc = 2\n", "a: the kernel 1, here none"),
        ("b = 1\nc = 1\n", "b = 2\nc = 1\n", "c: no longer differs"),
    ] {
        let panic = std::panic::catch_unwind(|| differences.check(kernel, other)).unwrap_err();
        let text = panic.downcast_ref::<String>().expect("a message");
        assert!(text.contains(expected), "{text}");
    }
}
