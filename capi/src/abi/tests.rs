//! Sizes and offsets, compared with the installed `infiniband/verbs.h` by a C compiler.

use std::fmt::Write;
use std::process::Command;

use super::{Layout, attributes, context, given, objects, work};

/// Grown since rdma-core 44: the installed header may have a shorter struct, so its size is not
/// compared.
const GROWN: &[&str] = &["ibv_qp_ex", "ibv_port_attr", "verbs_context"];
/// Fields that rdma-core 44 does not have.
const NEW: &[&str] = &["wr_flush", "active_speed_ex"];

/// Prints why a test is skipped: a program or a header is missing. In CI the test fails instead.
fn skip(reason: &str) {
    eprintln!("skipped: {reason}");
    assert!(std::env::var_os("CI").is_none(), "{reason}");
}

fn structs() -> impl Iterator<Item = &'static Layout> {
    let all =
        [attributes::LAYOUTS, context::LAYOUTS, given::LAYOUTS, objects::LAYOUTS, work::LAYOUTS];
    all.into_iter().flatten()
}

/// A C program whose assertions are the layouts of this crate. In `verbs_context` offsets count
/// from the `ibv_context`: the header's slots are those next to it.
fn program() -> String {
    let mut text = String::from("#include <stddef.h>\n#include <infiniband/verbs.h>\n");
    let context = std::mem::offset_of!(super::verbs_context, context);
    for layout in structs() {
        let name = layout.name;
        if !GROWN.contains(&name) {
            let _ = writeln!(
                text,
                "_Static_assert(sizeof(struct {name}) == {}, \"{name}\");",
                layout.size
            );
        }
        for (field, offset) in layout.fields {
            let field = field.trim_start_matches("r#");
            if NEW.contains(&field) {
                continue;
            }
            let assertion = if name != "verbs_context" {
                format!("offsetof(struct {name}, {field}) == {offset}")
            } else if field.starts_with("_ABI") || is_newer_slot(field) {
                continue;
            } else {
                let below = context - offset;
                format!(
                    "offsetof(struct {name}, context) - offsetof(struct {name}, {field}) == {below}"
                )
            };
            let _ = writeln!(text, "_Static_assert({assertion}, \"{name}.{field}\");");
        }
    }
    text
}

/// Slots that rdma-core 65 added to `verbs_context`.
fn is_newer_slot(field: &str) -> bool {
    let newer =
        ["free_buf", "alloc_buf", "dm_export_dmabuf_fd", "reg_mr_ex", "dealloc_dmah", "alloc_dmah"];
    newer.contains(&field)
}

#[test]
fn layouts_are_those_of_the_installed_header() {
    agrees_with_the_header("layouts", &program());
}

/// Compiles a program of assertions, and one of which the first assertion is wrong.
pub(crate) fn agrees_with_the_header(name: &str, program: &str) {
    let compiles = |text: &str| {
        let directory = std::env::temp_dir().join(format!("uverbs-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let source = directory.join("assertions.c");
        std::fs::write(&source, text).unwrap();
        let output = Command::new("cc").args(["-fsyntax-only", "-Wall"]).arg(&source).output();
        let _ = std::fs::remove_dir_all(&directory);
        output
    };
    let Ok(probe) = compiles("#include <infiniband/verbs.h>\n") else {
        return skip("no C compiler (cc)");
    };
    if !probe.status.success() {
        return skip("no <infiniband/verbs.h>: install libibverbs-dev");
    }
    let output = compiles(program).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    // The assertions can fail.
    let wrong = program.replacen("== ", "== 1 + ", 1);
    assert!(!compiles(&wrong).unwrap().status.success());
}

/// The installed header may be older, so these sizes are compared with constants.
#[test]
fn grown_structs_have_the_sizes_of_the_newest_release() {
    assert_eq!(size_of::<super::verbs_context>(), 696);
    assert_eq!(size_of::<super::ibv_qp_ex>(), 360);
    assert_eq!(size_of::<super::ibv_port_attr>(), 56);
}
