//! `recv.jsonl`.

use uverbs_mlx5::request::Sge;
use uverbs_mlx5_inspect::{ReceiveWqe, RecvQueueSpec, post_receives};

use crate::{compare, json, same, same_bytes};

#[test]
fn receive_queue() {
    compare(include_str!("recv.jsonl"), &[], |vector| {
        let lists: Vec<Vec<Sge>> = vector["wrs"]
            .as_array()
            .expect("a list")
            .iter()
            .map(|wr| wr["sge"].as_array().expect("a list").iter().map(json::sge).collect())
            .collect();
        let lists: Vec<&[Sge]> = lists.iter().map(Vec::as_slice).collect();
        let wqes = vector["expect"]["wqes"].as_array().expect("a list");
        // The vectors do not contain the queue's counter before; it follows from the first index.
        let start = json::word(&wqes[0]["idx"]);
        let stride = json::word(&vector["stride"]);
        let spec = RecvQueueSpec { entries: 64, stride, start, striding: false };
        let posted = post_receives(&spec, &lists).expect("the queue can be made");
        same("refused", posted.refused, None)?;
        same("WQEs", posted.wqes.len(), wqes.len())?;
        for (wqe, expected) in posted.wqes.iter().zip(wqes) {
            same("index", wqe.slot, json::word(&expected["idx"]))?;
            same_bytes("WQE", &wqe.bytes, expected["hex"].as_str().expect("digits"))?;
            let decoded = ReceiveWqe::decode(&wqe.bytes, false).expect("a WQE");
            same("findings", decoded.findings(), vec![])?;
            same("encoded again", decoded.encode(), wqe.bytes.clone())?;
        }
        let record = vector["expect"]["rq_doorbell_record"].as_str().expect("digits");
        same_bytes("doorbell record", &posted.doorbell_record, record)
    });
}
