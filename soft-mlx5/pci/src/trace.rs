//! The command trace: every firmware command with its fields by name, and every warning.

use std::fmt::{self, Write as _};
use std::io::Write;

use super::bits::Field;
use super::layout::command::{header, object};

/// Writes commands as they are executed. The default writes nothing.
#[derive(Default)]
pub struct Trace {
    writer: Option<Box<dyn Write + Send>>,
    count: u64,
}

type Structures = [(usize, &'static [(&'static str, Field)])];

impl Trace {
    /// A trace that is written to `writer`.
    pub fn new(writer: impl Write + Send + 'static) -> Self {
        Self { writer: Some(Box::new(writer)), count: 0 }
    }

    pub(super) fn command(
        &mut self,
        opcode: u16,
        name: &str,
        structures: &Structures,
        input: &[u8],
        output: &[u8],
        refusal: Option<impl fmt::Display>,
    ) {
        if self.writer.is_none() {
            return;
        }
        let operation = header::OP_MOD.get(input);
        let mut line = format!("{:5} {name} ({opcode:#x})", self.count);
        if operation != 0 {
            let _ = write!(line, " op_mod={operation:#x}");
        }
        fields(&mut line, structures, input);
        match refusal {
            Some(refusal) => drop(write!(line, " -> REFUSED {refusal}")),
            None => drop(write!(line, " -> ok, {:#x}", object::NUMBER.get(output))),
        }
        self.count += 1;
        self.line(&line);
    }

    pub(super) fn warning(&mut self, what: fmt::Arguments<'_>) {
        if self.writer.is_some() {
            self.line(&format!("      WARNING {what}"));
        }
    }

    fn line(&mut self, line: &str) {
        let Some(writer) = &mut self.writer else { return };
        if let Err(error) = writeln!(writer, "{line}").and_then(|()| writer.flush()) {
            tracing::warn!(%error, "the command trace ends here");
            self.writer = None;
        }
    }
}

/// Fields other than zero.
fn fields(line: &mut String, structures: &Structures, input: &[u8]) {
    for (bit, fields) in structures {
        for (name, field) in *fields {
            let value = field.at(*bit).get(input);
            if value != 0 {
                let _ = write!(line, " {}={value:#x}", name.to_ascii_lowercase());
            }
        }
    }
}

impl fmt::Debug for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Trace({} commands)", self.count)
    }
}
