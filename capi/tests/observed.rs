//! The output of `UVERBS_TRACE` and `UVERBS_CHECK`: a program's calls, and its mistakes.

mod library;

use std::process::Output;

use library::{DropIn, compiled, skip};

/// Runs the program with variables set; `None` without a compiler.
fn observed(
    name: &str,
    arguments: &[&str],
    variables: &[(&str, &str)],
) -> Option<(DropIn, Output)> {
    let drop_in = DropIn::new(name);
    let Some(program) = compiled(&drop_in, "observed.c", &["-libverbs", "-lmlx5"]) else {
        skip("no C compiler, or no <infiniband/verbs.h> (libibverbs-dev)");
        return None;
    };
    let mut command = std::process::Command::new(program);
    command.env("LD_LIBRARY_PATH", drop_in.path()).env("UVERBS_DEVICE", "soft");
    command.args(arguments).current_dir(drop_in.path());
    for (variable, value) in variables {
        command.env(variable, value);
    }
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("kept"), "{said}{complained}");
    Some((drop_in, output))
}

#[test]
fn a_trace_has_every_verb_with_its_fields() {
    let variables = [("UVERBS_TRACE", "trace"), ("UVERBS_TRACE_DATA", "1")];
    let Some((drop_in, output)) = observed("trace", &[], &variables) else { return };
    assert!(output.stderr.is_empty());
    let text = std::fs::read_to_string(drop_in.path().join("trace")).unwrap();
    let line = |start: &str| {
        let found = text.lines().find(|line| line.contains(start));
        found.unwrap_or_else(|| panic!("no {start} in {text}")).to_owned()
    };
    assert!(line("ibv_alloc_pd(context=0x").ends_with(" us>"));
    assert!(line("ibv_create_cq(context=0x").contains("cqe=16, cq_context=NULL, channel=NULL"));
    assert!(line("cqe=-1,").contains("= NULL EINVAL"));
    assert!(line("ibv_create_qp_ex(").contains("max_send_wr: 8"));
    assert!(line("ibv_create_qp_ex(").contains("qp_type: IBV_QPT_RC"));
    assert!(line("ibv_modify_qp(").contains("qp_state: IBV_QPS_INIT"));
    assert!(text.contains("qp_state: IBV_QPS_RTS") && text.contains("path_mtu: IBV_MTU_"));
    assert!(line("ibv_post_send(").contains("wr_id=0x11, RDMA_WRITE, SIGNALED, remote=0x"));
    assert!(line("ibv_post_recv(qp=0x").ends_with("wr_id=0x12, data=[])"));
    assert!(line("ibv_poll_cq(").contains("wr_id=0x11, RDMA_WRITE, qp_num=0x"));
    assert!(line("ibv_alloc_null_mr(pd=0x").contains("= 0x"));
    assert!(line("mlx5dv_create_cq(context=0x").contains("cqe: 8"));
    assert!(line("ibv_modify_cq(").contains("moderate: [4, 16]}) = 0"));
    assert!(line("ibv_ack_cq_events(").contains("count=0) = ()"));
    assert!(line("mlx5dv_devx_free_uar(uar=0x").contains(" = ()"));
    assert!(!line("ibv_query_gid_table(").contains("= 0 "));
    assert!(line("ibv_close_device(").contains(" = 0 <"));
}

#[test]
fn a_trace_without_data_has_control_verbs_only() {
    let Some((drop_in, _)) = observed("verbs", &[], &[("UVERBS_TRACE", "trace")]) else { return };
    let text = std::fs::read_to_string(drop_in.path().join("trace")).unwrap();
    assert!(text.contains("ibv_destroy_qp(") && !text.contains("ibv_post_send("), "{text}");
}

#[test]
fn misuse_is_named() {
    let variables = [("UVERBS_CHECK", "1"), ("MLX5_SINGLE_THREADED", "1")];
    let Some((_, output)) = observed("misuse", &["all"], &variables) else { return };
    let said = String::from_utf8(output.stderr).unwrap();
    let expected = [
        "ibv_dealloc_pd: double destroy: ibv_dealloc_pd has destroyed this protection domain",
        "ibv_reg_mr_iova2: use after destroy: pd was a protection domain",
        "ibv_create_cq: wrong context: the completion channel (channel) belongs to another context",
        "ibv_close_device: 2 object(s) of the device are left, a protection domain among them",
        "ibv_post_send: posting from two threads: this queue pair has no lock",
        "ibv_post_send: use after destroy: the argument was a queue pair, which ibv_destroy_qp has",
        "ibv_post_recv: use after destroy",
        "ibv_wr_start: use after destroy",
        "ibv_poll_cq: use after destroy: the argument was a completion queue",
        "ibv_wr_complete: nothing was begun",
        "ibv_wr_start: this thread builds requests of this queue pair already",
        "in flight, the first with wr_id 0x4",
        "in flight, the first with wr_id 0x3",
    ];
    let lines: Vec<_> = said.lines().collect();
    assert_eq!(lines.len(), expected.len(), "{said}");
    for (line, expected) in lines.iter().zip(expected) {
        let expected = expected.replace("ibv_reg_mr_iova2", "ibv_reg_mr");
        assert!(line.replace("_iova2", "").replace("_iova", "").contains(&expected), "{said}");
    }
}

/// Lines for a reader that is gone are lost, and do not end the program by SIGPIPE.
#[test]
fn programs_outlive_the_reader_of_their_lines() {
    let drop_in = DropIn::new("unread");
    let Some(program) = compiled(&drop_in, "observed.c", &["-libverbs", "-lmlx5"]) else {
        return skip("no C compiler, or no <infiniband/verbs.h> (libibverbs-dev)");
    };
    for variable in ["UVERBS_TRACE", "UVERBS_ERRORS", "UVERBS_CHECK"] {
        let (reader, writer) = std::os::unix::net::UnixStream::pair().unwrap();
        drop(reader);
        let output = std::process::Command::new(&program)
            .arg("all")
            .env("LD_LIBRARY_PATH", drop_in.path())
            .envs([("UVERBS_DEVICE", "soft"), ("UVERBS_CHECK", "1"), (variable, "-")])
            .env("MLX5_SINGLE_THREADED", "1")
            .stderr(std::os::fd::OwnedFd::from(writer))
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.contains("kept"), "{variable}: {output:?}");
    }
}

#[test]
fn correct_programs_get_no_complaint() {
    let Some((_, output)) = observed("good", &[], &[("UVERBS_CHECK", "1")]) else { return };
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn invalid_fault_settings_are_named() {
    let drop_in = DropIn::new("refused");
    let Some(mut program) = drop_in.command("ibv_devices") else { return skip("no ibverbs-utils") };
    let output = program.env("UVERBS_SOFT_FAULTS", "7,jam=1").output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("UVERBS_SOFT_FAULTS 7,jam=1 is not understood"), "{said}");
}

#[test]
fn misspelled_variables_are_named() {
    let drop_in = DropIn::new("variables");
    let Some(mut program) = drop_in.command("ibv_devices") else { return skip("no ibverbs-utils") };
    let output = program.env("UVERBS_SOFT_LNK", "ib").output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        said.contains("UVERBS_SOFT_LNK is none of UVERBS_SOFT_DEVICES, UVERBS_SOFT_LINK"),
        "{said}"
    );
}

#[test]
fn invalid_device_settings_are_named() {
    let drop_in = DropIn::new("misspelled");
    let Some(mut program) = drop_in.command("ibv_devices") else { return skip("no ibverbs-utils") };
    for (value, is_named) in [("sfot", true), ("soft,al", true), ("", false), ("soft", false)] {
        let output = program.env("UVERBS_DEVICE", value).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        let complaint = format!("UVERBS_DEVICE {value} is not understood");
        assert_eq!(said.contains(&complaint), is_named, "{value}: {said}");
    }
}
