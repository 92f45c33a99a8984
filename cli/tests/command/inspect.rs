//! `uverbs wqe` and `uverbs cqe`.

use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;

use serde_json::{Map, Value, json};

use crate::process::{run, run_with_input, uverbs};

const SEND: &str = include_str!("../../../provider-mlx5/inspect/tests/vectors/send.jsonl");
const RECV: &str = include_str!("../../../provider-mlx5/inspect/tests/vectors/recv.jsonl");
const CQE: &str = include_str!("../../../provider-mlx5/inspect/tests/vectors/cqe.jsonl");

/// A byte that libmlx5 did not write.
const UNWRITTEN: &str = "cc";

/// Cases that differ on purpose; the provider's own tests give the reasons.
const DIFFERENT: [&str; 2] =
    ["rc/RDMA_WRITE_1sge_len_2G#52", "resp_inline_scatter32_24B_into_8_8_0#629"];

fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).expect(line)).collect()
}

/// Feeds lines to a command, which answers each of them in order.
fn answers(command: &[&str], input: &str) -> Vec<Value> {
    let answers = lines(&run_with_input(command, input.as_bytes()).success().stdout);
    assert_eq!(answers.len(), input.lines().count());
    answers
}

/// Input and answer of each case that does not differ on purpose.
fn pairs(command: &[&str], input: &str) -> Vec<(Value, Value)> {
    let pairs = lines(input).into_iter().zip(answers(command, input));
    let pairs = pairs.inspect(|(line, answer)| assert_eq!(line["case"], answer["case"]));
    pairs.filter(|(line, _)| !DIFFERENT.iter().any(|case| line["case"] == *case)).collect()
}

fn same_bytes(ours: &Value, expected: &Value, length: usize, case: &Value) {
    let (ours, expected) = (ours.as_str().expect("hex"), expected.as_str().expect("hex"));
    assert_eq!(ours.len(), expected.len(), "{case}");
    for at in (0..2 * length).step_by(2) {
        let byte = &expected[at..at + 2];
        assert!(
            byte == UNWRITTEN || byte == &ours[at..at + 2],
            "{case}: byte {}: ours {ours}, expected {expected}",
            at / 2
        );
    }
}

#[test]
fn sends_are_encoded_as_recorded() {
    for (line, answer) in pairs(&["wqe", "encode"], SEND) {
        let (case, expected) = (&line["case"], &line["expect"]);
        for member in ["errno", "bad_index", "end", "sq_doorbell_record"] {
            assert_eq!(answer[member], expected[member], "{case} {member}");
        }
        let Some(wqes) = expected["wqes"].as_array() else { continue };
        let ours = answer["wqes"].as_array().expect("wqes");
        assert_eq!(ours.len(), wqes.len(), "{case}");
        for (ours, expected) in ours.iter().zip(wqes) {
            assert_eq!(
                (&ours["slot"], &ours["ds"]),
                (&expected["slot"], &expected["ds"]),
                "{case}"
            );
            same_bytes(
                &ours["hex"],
                &expected["hex"],
                16 * expected["ds"].as_u64().expect("ds") as usize,
                case,
            );
        }
        assert_eq!(answer["mmio"].as_array().map(Vec::len), Some(1), "{case}");
    }
}

#[test]
fn encoded_requests_decode_to_themselves() {
    let encoded = run_with_input(&["wqe", "encode"], SEND.as_bytes()).success().stdout;
    let posted = lines(SEND)
        .into_iter()
        .zip(lines(&encoded))
        .filter(|(_, answer)| answer.get("wqes").is_some());
    let posted: Vec<_> = posted.collect();
    let typed: Vec<String> = posted
        .iter()
        .map(|(line, answer)| {
            json!({"case": line["case"], "type": line["qp"]["type"], "wqes": answer["wqes"]})
                .to_string()
        })
        .collect();
    let decoded = answers(&["wqe", "decode"], &typed.join("\n"));
    for ((line, _), decoded) in posted.iter().zip(decoded) {
        let wqes = decoded["wqes"].as_array().unwrap_or_else(|| panic!("{decoded}"));
        for (request, wqe) in line["wrs"].as_array().expect("wrs").iter().zip(wqes) {
            if !["BIND_MW", "LOCAL_INV"].iter().any(|name| request["opcode"] == *name) {
                assert_eq!(wqe["wr"]["opcode"], request["opcode"], "{}", line["case"]);
            }
            for member in ["imm_be", "inv_rkey", "raddr", "rkey", "remote_qpn", "remote_qkey"] {
                if let (Some(ours), Some(asked)) = (wqe["wr"].get(member), request.get(member)) {
                    assert_eq!(ours, asked, "{} {member}", line["case"]);
                }
            }
            assert!(
                wqe["text"].as_str().is_some_and(|text| text.starts_with("0x0000 control: ")),
                "{wqe}"
            );
        }
    }
}

#[test]
fn receives_are_encoded_as_recorded() {
    // Where the queue was before follows from the first index.
    let started: Vec<String> = lines(RECV)
        .into_iter()
        .map(|mut line| {
            line["start"] = line["expect"]["wqes"][0]["idx"].clone();
            line.to_string()
        })
        .collect();
    for (line, answer) in pairs(&["wqe", "encode"], &started.join("\n")) {
        let (case, expected) = (&line["case"], &line["expect"]);
        assert_eq!(answer["rq_doorbell_record"], expected["rq_doorbell_record"], "{case}");
        for (ours, expected) in answer["wqes"]
            .as_array()
            .expect("wqes")
            .iter()
            .zip(expected["wqes"].as_array().expect("wqes"))
        {
            assert_eq!(ours["idx"], expected["idx"], "{case}");
            same_bytes(
                &ours["hex"],
                &expected["hex"],
                line["stride"].as_u64().expect("stride") as usize,
                case,
            );
        }
    }
}

#[test]
fn completions_are_decoded_as_recorded() {
    for (line, answer) in pairs(&["cqe", "decode"], CQE) {
        let mut ours = answer.as_object().expect("an object").clone();
        ours.remove("case");
        assert_eq!(
            Value::Object(sorted(&ours)),
            Value::Object(sorted(line["expect"].as_object().expect("expect"))),
            "{}",
            line["case"]
        );
    }
}

fn sorted(members: &Map<String, Value>) -> Map<String, Value> {
    let mut pairs: Vec<_> = members.clone().into_iter().collect();
    pairs.sort_by(|one, other| one.0.cmp(&other.0));
    pairs.into_iter().collect()
}

#[test]
fn completions_that_were_encoded_decode_to_the_same() {
    let completions: Vec<String> = lines(CQE)
        .into_iter()
        .map(|line| {
            let mut members = line["expect"].as_object().expect("expect").clone();
            members.insert("case".into(), line["case"].clone());
            Value::Object(members).to_string()
        })
        .filter(|line| !DIFFERENT.iter().any(|case| line.contains(case)))
        .collect();
    let encoded =
        run_with_input(&["cqe", "encode"], completions.join("\n").as_bytes()).success().stdout;
    for (asked, decoded) in
        lines(&completions.join("\n")).iter().zip(answers(&["cqe", "decode"], &encoded))
    {
        assert_eq!(
            sorted(asked.as_object().expect("object")),
            sorted(decoded.as_object().expect("object"))
        );
    }
}

#[test]
fn a_line_that_cannot_be_handled_is_answered_and_the_next_one_too() {
    let sound = SEND.lines().next().expect("a line");
    for command in [["wqe", "encode"], ["wqe", "decode"], ["cqe", "decode"], ["cqe", "encode"]] {
        for bad in [
            r#"{"case": "no bytes", "hex": "0", "cqe": "0", "qp": {}, "status": "x"}"#,
            r#"{"case": "null", "qp": null, "cqe": null, "wqes": null, "hex": null, "status": null}"#,
            r#"{"case": "types", "qp": 7, "stride": [], "cqe": {}, "wqes": {}, "opcode": "SEND"}"#,
            r#"{"case": "deep", "qp": {"type": "rc", "qpn": 1, "sq_wqebbs": 4294967295, "max_send_sge": 1, "max_inline_data": 0}, "wrs": [], "cqe": "", "hex": "", "status": 77}"#,
            r#"{"case": "ring", "qp": {"type": "rc", "qpn": 1, "sq_wqebbs": 3, "max_send_sge": 1, "max_inline_data": 0}, "wrs": [], "cqe": "", "hex": "", "status": 77}"#,
            r#"{"case": "opcode", "qp": {"type": "rc", "qpn": 1, "sq_wqebbs": 4, "max_send_sge": 1, "max_inline_data": 0}, "wrs": [{"opcode": "FROBNICATE"}], "cqe": "00", "hex": "00", "opcode": 1000}"#,
            r#"{"case": "stride", "stride": 4294967295, "wrs": [{"sge": []}], "cqe": "00", "hex": "00", "opcode": 1000}"#,
            r#"{"case": "stride 17", "stride": 17, "wrs": [{"sge": []}], "cqe": "00", "hex": "00", "opcode": 1000}"#,
        ] {
            let input = format!("{bad}\nnot JSON\n[1]\n\n{sound}\n");
            let answers = lines(&run_with_input(&command, input.as_bytes()).success().stdout);
            assert_eq!(answers.len(), 5, "{command:?} {bad}");
            assert!(answers[0]["error"].is_string(), "{command:?} {bad}: {}", answers[0]);
            assert!((1..4).all(|at| answers[at]["error"].is_string()), "{command:?}: {answers:?}");
            assert_eq!(answers[4]["case"], "rc/SEND_0sge#2", "{command:?}");
        }
    }
}

#[test]
fn refused_requests_come_with_errno_index_and_reason() {
    let line = |wrs: Value| {
        json!({
            "case": "refused", "start": 0, "pending_small_fence": false, "wrs": wrs,
            "qp": {"type": "rc", "qpn": 256, "sq_wqebbs": 4, "sq_sig_all": false, "max_send_sge": 2, "max_inline_data": 60},
        }).to_string()
    };
    let send = json!({"opcode": "SEND", "flags": 0, "sge": []});
    let entry = json!({"addr": "0x1000", "len": 16, "lkey": "0x1"});
    let inline = json!({"addr": "0x0", "len": 61, "lkey": "0x0", "data": "00".repeat(61)});
    let huge = json!({"addr": "0x0", "len": "0x80000000", "lkey": "0x0"});
    for (wrs, errno, index, posted) in [
        (json!([send, send, send, send, send, send]), 12, 4, 4),
        (json!([send, {"opcode": "SEND", "sge": [entry, entry, entry]}]), 12, 1, 1),
        (json!([send, {"opcode": "SEND", "flags": 8, "sge": [inline]}]), 12, 1, 1),
        (json!([{"opcode": "SEND", "sge": [huge]}]), 22, 0, 0),
        (json!([{"opcode": "TSO", "sge": []}]), 22, 0, 0),
        (
            json!([{"opcode": "RDMA_READ", "flags": 8, "sge": [{"addr": "0x0", "len": 4, "lkey": "0x0", "data": "00000000"}]}]),
            22,
            0,
            0,
        ),
    ] {
        let answer = &answers(&["wqe", "encode"], &line(wrs))[0];
        assert_eq!(
            (&answer["errno"], &answer["bad_index"]),
            (&errno.into(), &index.into()),
            "{answer}"
        );
        assert!(answer["reason"].is_string(), "{answer}");
        assert_eq!(answer["wqes"].as_array().map_or(0, Vec::len), posted, "{answer}");
    }
}

/// SEND of 64 bytes on QP 0x100, signaled, as the first WQE.
const WQE: &str = "0000000a0001000200000008000000000000004000123400 00007e0000000000";

#[test]
fn dumps_of_all_kinds_are_read() {
    let plain = run(&["wqe", "decode", "--type", "rc", WQE]).success().stdout;
    assert!(
        plain.contains("opcode=SEND")
            && plain.contains("qpn=0x100")
            && plain.contains("byte_count=64"),
        "{plain}"
    );
    for dump in [
        "00000000: 0000 000a 0001 0002 0000 0008 0000 0000  ................\n00000010: 0000 0040 0012 3400 0000 7e00 0000 0000  ...@..4...~.....\n",
        "00000000  00 00 00 0a 00 01 00 02  00 00 00 08 00 00 00 00  |................|\n00000010  00 00 00 40 00 12 34 00  00 00 7e 00 00 00 00 00  |...@..4...~.....|\n",
        "0x7ffff7fb0000:\t0x0a000000\t0x02000100\t0x08000000\t0x00000000\n0x7ffff7fb0010:\t0x40000000\t0x00341200\t0x007e0000\t0x00000000\n",
    ] {
        assert_eq!(
            run_with_input(&["wqe", "decode", "--type", "rc"], dump.as_bytes()).success().stdout,
            plain,
            "{dump}"
        );
    }
    let explained = run(&["wqe", "decode", "--explain", WQE]).success().stdout;
    assert!(
        explained.contains("taken for a RC queue's") && explained.len() > plain.len() + 50,
        "{explained}"
    );
}

#[test]
fn illegal_wqes_are_reported() {
    let two_gib = WQE.replace("00000040", "80000000");
    let text = run(&["wqe", "decode", "--type", "rc", &two_gib]).success().stdout;
    assert!(text.contains("illegal at byte"), "{text}");
}

#[test]
fn rings_and_receive_queues_are_decoded_entry_by_entry() {
    let block = format!("{:0<128}", WQE.replace(' ', ""));
    let second = block.replacen("0000000a", "0000010a", 1);
    let text = run(&["wqe", "decode", "--type", "rc", "--ring", &block, &second]).success().stdout;
    assert!(
        text.contains("block 0\n") && text.contains("block 1\n") && !text.contains("illegal"),
        "{text}"
    );
    let wrong = run(&["wqe", "decode", "--type", "rc", "--ring", &second, &block]).success().stdout;
    assert!(wrong.contains("belongs into slot 1, not 0"), "{wrong}");
    let entry = "000000400012340000007e0000008000";
    let text =
        run(&["wqe", "decode", "--queue", "recv", "--stride", "16", entry, entry]).success().stdout;
    assert!(text.contains("entry 1\n") && text.contains("byte_count=64"), "{text}");
    let shared =
        run(&["wqe", "decode", "--queue", "srq", &format!("00000007{}{entry}", "0".repeat(24))])
            .success()
            .stdout;
    assert!(shared.contains("wqe_index=7"), "{shared}");
    let pair = [entry, entry].concat();
    for (arguments, words) in [
        (&["--stride", "32", &pair][..], "of up to 128 bytes into 2 memory areas, in order."),
        (&["--stride", "16", entry], "of up to 64 bytes into one memory area."),
        (&["00000000000001000000000000000000"], "a message without data"),
    ] {
        let command = [&["wqe", "decode", "--queue", "recv", "--explain"], arguments].concat();
        let text = run(&command).success().stdout;
        assert!(text.contains(words), "{text}");
    }
}

/// Feeds `part` to a command `count` times. Returns the number of lines that it printed, and its
/// peak memory in KiB.
fn feed(arguments: &[&str], part: &[u8], count: usize) -> (usize, u64) {
    let mut command = uverbs(arguments);
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("start uverbs");
    let (mut input, output) = (child.stdin.take().expect("in"), child.stdout.take().expect("out"));
    let reader = std::thread::spawn(move || BufReader::new(output).lines().count());
    (0..count).for_each(|_| input.write_all(part).expect("read"));
    // The command has read all but what is still in the pipe.
    let status = format!("/proc/{}/status", child.id());
    let status = std::fs::read_to_string(status).expect("status");
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("VmHWM");
    let peak = peak.trim().trim_end_matches(" kB").parse().expect("a number");
    drop(input);
    assert!(child.wait().expect("end").success());
    (reader.join().expect("lines"), peak)
}

/// 64 MiB of each kind, in no more memory than 16 MiB beyond what the first megabytes take.
#[test]
fn dumps_of_any_length_take_bounded_memory() {
    const MIB: usize = 1 << 20;
    const ZERO: &str = "0000 0000 0000 0000 0000 0000 0000 0000";
    // A NOP of one block; the rest of the text is a column that is not read.
    let line = |at: usize, bytes: &str| format!("{at:08x}: {bytes:<40} {:.<4000}\n", "");
    let nop = [0, 16, 32, 48]
        .map(|at| line(at, if at == 0 { "0000 0000 0000 0701 0000 0000 0000 0000" } else { ZERO }));
    let nop = nop.concat().repeat(MIB / (4 * 4052) + 1);
    let json =
        format!("{}\n", json!({ "case": 1, "hex": "00".repeat(16), "pad": "x".repeat(MIB) }));
    for (arguments, part, entries) in [
        (&["wqe", "decode", "--type", "rc"][..], &nop, 0),
        (&["wqe", "decode", "--queue", "recv", "--stride", "64"], &nop, 0),
        (&["cqe", "decode"], &nop, 0),
        (&["wqe", "decode"], &json, 1),
    ] {
        let (few, small) = feed(arguments, part.as_bytes(), 3);
        let (many, large) = feed(arguments, part.as_bytes(), 64);
        assert!(large < small + 16 * 1024, "{arguments:?}: {small} KiB, then {large} KiB");
        assert!(many > 20 * few - 20 && few > entries, "{arguments:?}: {few} lines, then {many}");
    }
}

#[test]
fn a_dump_that_ends_within_an_entry_is_refused_at_any_length() {
    let text = "00".repeat((1 << 21) + 1);
    for (command, words) in [
        (&["wqe", "decode", "--queue", "recv", "--stride", "64"][..], "not whole entries"),
        (&["wqe", "decode", "--queue", "recv"], "--stride tells"),
        (&["cqe", "decode"], "not a whole number of CQEs"),
        (&["wqe", "decode", "--ring"], "2097153 bytes are not a whole send queue"),
    ] {
        run_with_input(command, text.as_bytes()).failure(2, words);
    }
}

#[test]
fn incomplete_queues_and_entries_are_refused() {
    let entry = "000000400012340000007e0000008000";
    let wqe = format!("{:0<128}", WQE.replace(' ', ""));
    let three = wqe.repeat(3);
    let cqes = "00".repeat(3 * 64);
    for (command, reason) in [
        (
            &["wqe", "decode", "--queue", "recv", "--stride", "0", entry][..],
            "an entry has 16 bytes",
        ),
        (&["wqe", "decode", "--queue", "recv", "--stride", "24", entry], "an entry has 16 bytes"),
        (&["wqe", "decode", "--queue", "recv", "--stride", "32", entry], "16 bytes are not whole"),
        (&["wqe", "decode", "--queue", "recv", &entry[2..]], "15 bytes are not whole entries"),
        (&["wqe", "decode", "--ring", &three], "192 bytes are not a whole send queue"),
        (&["wqe", "decode", "--ring", WQE], "32 bytes are not a whole send queue"),
        (&["cqe", "decode", "--consumed", "0", &cqes], "3 CQEs are not a whole completion queue"),
    ] {
        run(command).failure(2, reason);
    }
}

/// In a queue of two entries, of which two were consumed, the owner bit of the second lap tells
/// which entries are new.
#[test]
fn the_owner_bit_tells_which_completions_are_new() {
    let cqe = |owner: &str| format!("{}2{owner}", "00".repeat(63));
    let queue = [cqe("1"), cqe("0")].concat();
    let told = |consumed: &str| {
        let text = run(&["cqe", "decode", "--consumed", consumed, &queue]).success().stdout;
        let (first, second) = text.split_once("CQE 1\n").expect("two");
        [first, second].map(|part| part.contains("not written this CQE yet"))
    };
    assert_eq!(told("2"), [false, true]);
    assert_eq!(told("3"), [true, true]);
    assert_eq!(told("4"), [true, false]);
    assert_eq!(told("0"), [true, false]);
}

/// A queue of four entries: a title CQE in the last one, its mini CQEs in the first one, and a
/// later CQE.
#[test]
fn compressed_completions_are_expanded() {
    let minis = "00000007000000400000000900000080";
    let title = format!("{:0<88}00000002{:0<30}2c", "", "");
    let array = format!("{minis}{:0<96}", "");
    let plain = format!("{}21", "00".repeat(63));
    let empty = format!("{}f0", "00".repeat(63));
    assert_eq!([&title, &array, &plain, &empty].map(String::len), [128; 4]);
    let queue = [array, plain, empty, title].concat();
    let text = run(&["cqe", "decode", "--consumed", "3", &queue]).success().stdout;
    for words in [
        "CQE 0\ntaken by the completions of CQE 3\n",
        "CQE 3, completion 1 of 2\n",
        "CQE 3, completion 2 of 2\n",
        "byte_count=64\n",
        "byte_count=128\n",
    ] {
        assert!(text.contains(words), "{words} is missing in {text}");
    }
    let text = run(&["cqe", "decode", &queue]).success().stdout;
    let cut = "cannot be written out: the title promises 2 completions, the arrays hold 0";
    assert!(text.contains(cut), "{text}");
}

#[test]
fn an_error_completion_is_explained() {
    let line = lines(CQE).into_iter().find(|line| {
        line["case"].as_str().is_some_and(|case| case.starts_with("req_err_syndrome_0x13"))
    });
    let hex = line.expect("a line")["cqe"].as_str().expect("hex").to_owned();
    let text = run(&["cqe", "decode", &hex, "--explain"]).success().stdout;
    for expected in
        ["syndrome=0x13", "The responder refused the access", "Likely causes:", "Check:"]
    {
        assert!(text.contains(expected), "{expected} is missing in {text}");
    }
}

/// Each line of JSON in the help is answered without an error.
#[test]
fn the_examples_of_the_help_are_encoded() {
    for (kind, count) in [("wqe", 3), ("cqe", 2)] {
        let help = run(&[kind, "encode", "--help"]).success().stdout;
        let examples: Vec<&str> = help.lines().filter(|line| line.starts_with('{')).collect();
        assert_eq!(examples.len(), count, "{help}");
        for answer in answers(&[kind, "encode"], &examples.join("\n")) {
            assert!(answer["error"].is_null(), "{answer}");
        }
    }
}

#[test]
fn members_that_do_not_exist_are_refused() {
    let misspelt = r#"{"stride": 32, "wrs": [{"sge": [{"addres": 0, "len": 4, "lkey": 0}]}]}"#;
    let answer = &answers(&["wqe", "encode"], misspelt)[0];
    assert!(answer["error"].as_str().expect("an error").contains("addres"), "{answer}");
    let answer = &answers(&["cqe", "encode"], r#"{"x": 1}"#)[0];
    assert!(answer["error"].as_str().expect("an error").contains("qp_num"), "{answer}");
}
