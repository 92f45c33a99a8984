//! Another program holds UDP port 4791 of every address, and with it all stations of software
//! devices.

use std::fs::{self, Permissions};
use std::net::UdpSocket;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

use nix::unistd::geteuid;

use crate::process::{Running, Scratch, uverbs};

/// Set in the process that holds the port.
const VARIABLE: &str = "UVERBS_TEST_SQUATTER";

/// Runs this test once more in a network namespace of its own, with [`VARIABLE`] set.
#[test]
fn devices_of_one_user_connect_where_another_user_has_taken_all_names() {
    if std::env::var_os(VARIABLE).is_some() {
        return squat();
    }
    let script = "ip link set lo up && exec \"$0\" --exact --nocapture \
        squatter::devices_of_one_user_connect_where_another_user_has_taken_all_names";
    if !Command::new("unshare")
        .args(["-rn", "ip", "link"])
        .stdout(Stdio::null())
        .status()
        .is_ok_and(|it| it.success())
    {
        assert!(std::env::var_os("CI").is_none(), "no network namespaces (unshare, iproute2)");
        return eprintln!("skipped: no network namespaces (unshare, iproute2)");
    }
    // Not below the target directory, whose path may be too long for a socket's name.
    let scratch = Scratch::in_directory(&std::env::temp_dir(), "squatter");
    let mut command = Command::new("unshare");
    command.args(["-rn", "sh", "-c", script]).arg(std::env::current_exe().expect("this test"));
    command.env(VARIABLE, "1").env("XDG_RUNTIME_DIR", scratch.path());
    Running::start(&mut command).end().success();
}

/// The same user without a directory of its own; another user owns its name in `/tmp`.
fn connect_without_a_home() {
    let shared = Scratch::in_directory(&std::env::temp_dir(), "squatted");
    fs::set_permissions(shared.path(), Permissions::from_mode(0o1777)).expect("sticky");
    fs::write(shared.path().join(format!("uverbs-soft-{}", geteuid())), "mine").expect("a file");
    let mut command = uverbs(&["pingpong", "--iters", "50"]);
    command.env_remove("XDG_RUNTIME_DIR").env("HOME", "/nonexistent");
    let ended = Running::start(command.env("TMPDIR", shared.path())).end().success();
    assert!(ended.stdout.contains("verified  6400 bytes"), "{ended:?}");
}

fn squat() {
    let _held = UdpSocket::bind("0.0.0.0:4791").expect("the port");
    let ended = Running::start(&mut uverbs(&["pingpong", "--iters", "50"])).end().success();
    assert!(ended.stdout.contains("verified  6400 bytes"), "{ended:?}");
    connect_without_a_home();
    // A device that uses UDP only cannot. The error gives that cause, and not a removed device.
    let mut command = uverbs(&["info", "soft"]);
    let ended = Running::start(command.env("UVERBS_SOFT_WIRE", "udp")).end();
    let ended = ended.failure(1, "addresses of 127.18.0.0/16 in a row are taken");
    assert!(!ended.stderr.contains("removed"), "{ended:?}");
}

/// Environment variables set the properties of the device that programs open as `soft`.
#[test]
fn variables_say_how_the_device_is_made() {
    let said = |variable: &str, value: &str| {
        let mut command = uverbs(&["info", "soft"]);
        Running::start(command.env(format!("UVERBS_SOFT_{variable}"), value)).end()
    };
    let default = said("MODEL", "");
    assert!(
        default.stdout.contains(", 4125") && !default.stdout.contains("InfiniBand"),
        "{default:?}"
    );
    let newer = said("MODEL", "cx7");
    assert!(newer.stdout.contains(", 4129"), "{newer:?}");
    let infiniband = said("LINK", "ib");
    assert!(infiniband.stdout.contains("InfiniBand"), "{infiniband:?}");
    let address = said("ADDRESS", "127.18.77.3");
    assert!(address.stdout.contains("127.18.77.3"), "{address:?}");
    // Some failing calls have another way round them.
    let fails = |number: u32| !said("FAULTS", &format!("1,ioctl={number}:EIO")).status.success();
    assert!((1..10).any(fails));
    said("FAULTS", "none").failure(2, "UVERBS_SOFT_FAULTS none is not understood: it is a number");
    said("DEVICES", "2").failure(2, "SoftDevice::builder");
    let recording = std::env::temp_dir().join(format!("uverbs-info-{}.pcap", std::process::id()));
    let _ = std::fs::remove_file(&recording);
    said("PCAP", &recording.to_string_lossy());
    assert!(recording.is_file());
    std::fs::remove_file(recording).expect("just made");
}

#[test]
fn a_misspelt_variable_is_an_error() {
    let mut command = uverbs(&["info", "soft"]);
    let ended = Running::start(command.env("UVERBS_SOFT_WIRE", "upd")).end();
    ended.failure(2, "UVERBS_SOFT_WIRE upd is not understood: it is memory, ");
    let mut command = uverbs(&["info", "soft"]);
    let ended = Running::start(command.env("UVERBS_SOFT_WIER", "udp")).end();
    ended.failure(2, "UVERBS_SOFT_WIER is none of");
    let mut command = uverbs(&["pingpong", "--cm", "127.0.0.1"]);
    let ended = Running::start(command.env("UVERBS_DEVICE", "sofd")).end();
    ended.failure(2, "no device sofd");
}
