//! Checks that compare the contents of one file with the value that a polling program needs.

use super::Check;
use super::tree::Tree;

/// A file and its expected contents. `{}` in texts is replaced by the number or name of the
/// subject.
pub(super) struct Rule {
    pub(super) name: &'static str,
    pub(super) path: &'static str,
    /// Whether the contents are right; `None` if they are only for information.
    pub(super) wanted: Option<fn(&str) -> bool>,
    pub(super) why: &'static str,
    pub(super) cure: &'static str,
}

impl Rule {
    /// Reads the file; `Unknown` if it does not exist.
    pub(super) fn check(&self, tree: &Tree, subject: &str, name: &str) -> Check {
        let path = self.path.replace("{}", name);
        let check = Check::new(subject, self.name, format!("/{path}"), self.why);
        let Some(value) = tree.read(&path) else {
            return check.unknown("this machine or kernel does not have it");
        };
        let shown = if value.is_empty() { "nothing".to_owned() } else { value.clone() };
        match self.wanted {
            Some(wanted) => check.judge(wanted(&value), shown, self.cure.replace("{}", name)),
            None => check.note(shown),
        }
    }
}

/// The value of a file that lists choices and marks the one that is used: `always [madvise]`.
pub(super) fn selected(text: &str) -> &str {
    let marked = text.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    marked.map_or(text, |(choice, _)| choice)
}
