//! Compares every struct, constant and id of this crate with the kernel's headers, through a C
//! compiler.
//!
//! The test generates a C program with one check per line from the crate's own tables. The line of
//! a name that the installed headers lack does not compile. The program that runs leaves such lines
//! out. Their names must be in `NEWER`, the list of what came after Linux 6.1, so that a misspelt
//! name is a failure.
//!
//! Without a compiler or headers the test says so and passes, unless `CI` is set.
//! `UVERBS_KERNEL_HEADERS` names a directory with newer headers (`rdma/ib_user_verbs.h` below it).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use uverbs_uapi::enums::DriverId;
use uverbs_uapi::layout::{self, Struct};
use uverbs_uapi::objects;

mod newer;
use newer::NEWER;

const KERNEL_HEADERS: &str = "\
#include <stdio.h>
#include <stddef.h>
#include <rdma/ib_user_verbs.h>
#include <rdma/ib_user_ioctl_verbs.h>
#include <rdma/ib_user_ioctl_cmds.h>
#include <rdma/mlx5-abi.h>
#include <rdma/mlx5_user_ioctl_verbs.h>
#include <rdma/mlx5_user_ioctl_cmds.h>
#include <rdma/rdma_user_ioctl_cmds.h>
#include <rdma/rdma_user_cm.h>
#include <linux/in.h>
";

/// Renamed structs: C type now, C type in older headers.
const RENAMED: &[(&str, &str)] = &[("struct ib_uverbs_clock_info", "struct mlx5_ib_clock_info")];

/// One line of the program: what it prints, and what that should be.
struct Check {
    name: String,
    expression: String,
    expected: u64,
}

impl Check {
    fn new(name: impl Into<String>, expression: impl Into<String>, expected: u64) -> Self {
        Self { name: name.into(), expression: expression.into(), expected }
    }
}

fn field_checks(of: &Struct) -> Vec<Check> {
    let c = of.c_name;
    let short = c.trim_start_matches("struct ");
    let mut checks =
        vec![Check::new(format!("sizeof {short}"), format!("sizeof({c})"), of.size as u64)];
    for field in of.fields.iter().filter(|field| !field.c_path.is_empty()) {
        let path = field.c_path;
        checks.push(Check::new(
            format!("{short}.{path}"),
            format!("offsetof({c}, {path})"),
            field.offset as u64,
        ));
        checks.push(Check::new(
            format!("sizeof {short}.{path}"),
            format!("sizeof((({c} *)0)->{path})"),
            field.size as u64,
        ));
    }
    checks
}

fn id_checks() -> Vec<Check> {
    let id = |c_name: &str, id: u16| Check::new(c_name, c_name, u64::from(id));
    let mut checks = Vec::new();
    for object in objects::all(DriverId::MLX5) {
        checks.push(id(object.c_name, object.id.0));
        for method in object.methods {
            checks.push(id(method.c_name, method.id.0));
            checks.extend(method.attributes.iter().map(|attr| id(attr.c_name, attr.id.0)));
        }
    }
    checks
}

/// Where a constant's name is declared.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Header {
    Kernel,
    Libibverbs,
    Librdmacm,
}

impl Header {
    fn of(c_name: &str) -> Self {
        match c_name {
            name if name.starts_with("IBV_") => Self::Libibverbs,
            name if name.starts_with("RDMA_CM_EVENT_") => Self::Librdmacm,
            _ => Self::Kernel,
        }
    }
}

fn constant_checks(header: Header) -> Vec<Check> {
    layout::constants()
        .filter(|constant| !constant.c_name.is_empty())
        .filter(|constant| Header::of(constant.c_name) == header)
        .map(|constant| Check::new(constant.c_name, constant.c_name, constant.value))
        .collect()
}

fn program(headers: &str, checks: &[Check], absent: &BTreeSet<usize>) -> String {
    let mut text = format!("{headers}int main(void) {{\n");
    for (index, check) in checks.iter().enumerate() {
        if absent.contains(&index) {
            text.push('\n');
            continue;
        }
        // An enum constant is an int: bit 31 must not spread over the upper half, while constants
        // of 64 bits keep it.
        writeln!(
            text,
            "printf(\"{index} %llu\\n\", sizeof({0}) <= 4 ? (unsigned long long)(unsigned)({0}) \
             : (unsigned long long)({0}));",
            check.expression
        )
        .expect("a String takes everything");
    }
    text + "return 0; }\n"
}

/// A C compiler, the directory for its files, and where it finds headers.
struct Compiler {
    name: String,
    scratch: PathBuf,
    include: Option<PathBuf>,
}

impl Compiler {
    /// `Err` says what is missing.
    fn find(test: &str) -> Result<Self, String> {
        let name = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
        Command::new(&name)
            .arg("--version")
            .output()
            .map_err(|error| format!("no C compiler `{name}`: {error}"))?;
        let scratch = Path::new(env!("CARGO_TARGET_TMPDIR")).join(test);
        std::fs::create_dir_all(&scratch).map_err(|error| error.to_string())?;
        let include = std::env::var_os("UVERBS_KERNEL_HEADERS").map(PathBuf::from);
        Ok(Self { name, scratch, include })
    }

    fn run(&self, text: &str, extra: &[&str]) -> std::process::Output {
        let source = self.scratch.join("check.c");
        std::fs::write(&source, text).expect("the target directory is writable");
        let mut command = Command::new(&self.name);
        command.env("LC_ALL", "C").arg("-w");
        if let Some(include) = &self.include {
            command.arg("-I").arg(include);
        }
        command.args(extra).arg(&source);
        command.output().expect("the compiler ran a moment ago")
    }

    fn has(&self, headers: &str) -> bool {
        self.run(&format!("{headers}int main(void) {{ return 0; }}\n"), &["-fsyntax-only"])
            .status
            .success()
    }

    /// Which checks do not compile, by the line numbers of the errors.
    fn absent(&self, headers: &str, checks: &[Check]) -> BTreeSet<usize> {
        let first = headers.lines().count() + 2;
        let output = self.run(&program(headers, checks, &BTreeSet::new()), &["-fsyntax-only"]);
        let errors = String::from_utf8_lossy(&output.stderr);
        errors.lines().filter_map(|line| error_line(line)?.checked_sub(first)).collect()
    }

    /// What each check prints.
    fn values(
        &self,
        headers: &str,
        checks: &[Check],
        absent: &BTreeSet<usize>,
    ) -> BTreeMap<usize, u64> {
        let binary = self.scratch.join("check");
        let path = binary.to_str().expect("the target directory's name is UTF-8");
        let output = self.run(&program(headers, checks, absent), &["-o", path]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let output = Command::new(&binary).output().expect("just compiled");
        let text = String::from_utf8(output.stdout).expect("digits");
        text.lines()
            .map(|line| {
                let (index, value) = line.split_once(' ').expect("two numbers");
                (index.parse().expect("a number"), value.parse().expect("a number"))
            })
            .collect()
    }
}

/// The line number in `file:line:column: error: …`, which gcc and clang share.
fn error_line(message: &str) -> Option<usize> {
    let (place, _) =
        message.split_once(": error:").or_else(|| message.split_once(": fatal error:"))?;
    let mut parts = place.rsplit(':');
    parts.next()?;
    parts.next()?.parse().ok()
}

fn skip(reason: &str) {
    assert!(std::env::var_os("CI").is_none(), "{reason}");
    eprintln!("SKIPPED: {reason}");
}

/// Compares, and returns the names of what the headers lack.
fn compare(compiler: &Compiler, headers: &str, checks: &[Check]) -> BTreeSet<String> {
    let absent = compiler.absent(headers, checks);
    let values = compiler.values(headers, checks, &absent);
    assert_eq!(values.len() + absent.len(), checks.len());
    let lacking: BTreeSet<String> =
        absent.iter().map(|index| checks[*index].name.clone()).collect();
    // A struct that lacks fields is shorter, or has longer reserved fields instead.
    let grown = |name: &str| {
        let of = name.trim_start_matches("sizeof ").split('.').next().unwrap_or_default();
        name.starts_with("sizeof ")
            && lacking.iter().any(|lack| lack.starts_with(&format!("{of}.")))
    };
    let wrong: Vec<String> = values
        .iter()
        .map(|(index, value)| (&checks[*index], *value))
        .filter(|(check, value)| check.expected != *value && !grown(&check.name))
        .map(|(check, value)| format!("{}: {} here, {value} in C", check.name, check.expected))
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    println!("{} compared, {} absent from these headers", values.len(), lacking.len());
    lacking
}

#[test]
fn structs_constants_and_ids_are_the_kernels() {
    let compiler = match Compiler::find("kernel") {
        Ok(compiler) => compiler,
        Err(reason) => return skip(&reason),
    };
    if !compiler.has(KERNEL_HEADERS) {
        return skip("no kernel headers <rdma/…>: install linux-libc-dev");
    }
    let mut headers = KERNEL_HEADERS.to_owned();
    for (now, before) in RENAMED {
        if !compiler.has(&format!("{headers}{now} probe;\n"))
            && compiler.has(&format!("{headers}{before} probe;\n"))
        {
            let (now, before) =
                (now.trim_start_matches("struct "), before.trim_start_matches("struct "));
            println!("{now} is {before} in these headers");
            writeln!(headers, "#define {now} {before}").expect("a String takes everything");
        }
    }
    let mut checks: Vec<Check> = layout::structs().flat_map(field_checks).collect();
    checks.extend(constant_checks(Header::Kernel));
    checks.extend(id_checks());
    expect_only_newer(&compare(&compiler, &headers, &checks));
}

/// Nothing but what came after the oldest headers may be missing from those installed.
fn expect_only_newer(lacking: &BTreeSet<String>) {
    for name in lacking {
        println!("not checked, not in these headers: {name}");
    }
    let unexpected: Vec<_> = lacking
        .iter()
        .filter(|name| !NEWER.contains(&name.trim_start_matches("sizeof ")))
        .collect();
    assert!(
        unexpected.is_empty(),
        "neither in these headers nor known to be newer: {unexpected:#?}"
    );
}

#[test]
fn events_are_librdmacms_events() {
    let compiler = match Compiler::find("librdmacm") {
        Ok(compiler) => compiler,
        Err(reason) => return skip(&reason),
    };
    // The library's copy of the kernel's names clashes with the kernel's header: a program of its
    // own.
    let headers = "#include <stdio.h>\n#include <stddef.h>\n#include <rdma/rdma_cma.h>\n";
    if !compiler.has(headers) {
        return skip("no <rdma/rdma_cma.h>: install librdmacm-dev");
    }
    expect_only_newer(&compare(&compiler, headers, &constant_checks(Header::Librdmacm)));
}

#[test]
fn internal_values_are_libibverbs_values() {
    let compiler = match Compiler::find("libibverbs") {
        Ok(compiler) => compiler,
        Err(reason) => return skip(&reason),
    };
    // Only values are wanted: the library itself is not linked.
    let headers = "#include <stdio.h>\n#include <stddef.h>\n#include <infiniband/verbs.h>\n";
    if !compiler.has(headers) {
        return skip("no <infiniband/verbs.h>: install libibverbs-dev");
    }
    let lacking = compare(&compiler, headers, &constant_checks(Header::Libibverbs));
    assert!(lacking.is_empty(), "not in <infiniband/verbs.h>: {lacking:#?}");
}

#[test]
fn fields_leave_no_gap() {
    for of in layout::structs() {
        let end = of.fields.iter().fold(0, |at, field| {
            assert_eq!(field.offset, at, "{}.{}", of.name, field.name);
            at + field.size
        });
        assert_eq!(end, of.size, "{}", of.name);
    }
}

#[test]
fn the_list_of_newer_names_names_something() {
    let mut known: BTreeSet<String> =
        layout::structs().flat_map(field_checks).map(|check| check.name).collect();
    let constants = [Header::Kernel, Header::Librdmacm].map(constant_checks);
    known.extend(constants.into_iter().flatten().chain(id_checks()).map(|check| check.name));
    for name in NEWER {
        assert!(known.contains(*name) || known.contains(&format!("sizeof {name}")), "{name}");
    }
}
