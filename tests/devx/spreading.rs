//! Tables of receive queues (RQTs) over which a hash spreads frames.

use std::time::Instant;

use uverbs::devx::DevxObject;
use uverbs::flow::Flow;
use uverbs_soft_adapter::firmware::bits::field;
use uverbs_soft_adapter::firmware::layout::capability::general;
use uverbs_soft_adapter::firmware::layout::ethernet::{rqtc, tirc};

use crate::common::PATIENCE;
use crate::ethernet::{Bench, CONTEXT, Rq};
use crate::firmware::{Input, create};
use crate::{BAD_INPUT_LENGTH, BAD_PARAMETER, refused};

/// Offset in bits of the list of receive queues in commands.
const LIST: usize = CONTEXT + 0x780;

/// A list of receive queues, and the steering rule for it.
pub(crate) struct Table {
    list: DevxObject,
    tir: DevxObject,
    rule: Flow,
}

impl Table {
    /// Spreads frames over these queues by a hash.
    pub(crate) fn new(bench: &Bench, queues: [u32; 2]) -> Self {
        let (list, number) = create(&bench.devx, &table(2, 2, &queues));
        let mut fields = vec![
            (tirc::DISP_TYPE, 1),
            (tirc::INDIRECT_TABLE, number.into()),
            (tirc::RX_HASH_FN, 2),
            // IPv4 and UDP: both addresses and both ports.
            (tirc::RX_HASH_FIELD_SELECTOR_OUTER, 1 << 30 | 0xf),
        ];
        let key = (0..10).map(|word| (tirc::RX_HASH_TOEPLITZ_KEY.element(word, 32), 0x6d5a_56da));
        fields.extend(key);
        let (tir, rule) = bench.lead_to(&fields);
        Self { list, tir, rule }
    }

    pub(crate) fn close(self) {
        self.rule.destroy().unwrap();
        self.tir.destroy().unwrap();
        self.list.destroy().unwrap();
    }
}

/// Polls two queues, by number, until as many frames have arrived as were sent. Checks that they
/// are the frames that were sent, and that each queue got some.
pub(crate) fn all_arrive(mut sent: Vec<Vec<u8>>, mut poll: impl FnMut(usize) -> Option<Vec<u8>>) {
    let (mut got, mut counts) = (Vec::new(), [0; 2]);
    let start = Instant::now();
    while got.len() < sent.len() {
        for (queue, count) in counts.iter_mut().enumerate() {
            let arrived = poll(queue);
            *count += usize::from(arrived.is_some());
            got.extend(arrived);
        }
        assert!(start.elapsed() < PATIENCE, "frames are missing: {counts:?}");
        std::thread::yield_now();
    }
    got.sort();
    sent.sort();
    assert_eq!(got, sent);
    assert!(counts.iter().all(|count| *count > 0), "{counts:?}");
}

#[test]
fn a_hash_spreads_frames_over_queues_made_by_commands() {
    let Some(mut bench) = Bench::new() else { return };
    let mut queues = [0; 2].map(|_| Rq::new(&bench.devx, &bench.uar, &bench.wire));
    let table = Table::new(&bench, [queues[0].number, queues[1].number]);
    let sent = (1..=16).map(|port| bench.send(port)).collect();
    all_arrive(sent, |queue| queues[queue].poll::<82>().map(Vec::from));
    table.close();
    queues.into_iter().for_each(Rq::close);
    bench.close();
}

/// A table of receive queues, with a list of these.
pub(crate) fn table(max: u64, actual: u64, queues: &[u32]) -> Input {
    let input = Input::new(0x916, LIST / 8 + queues.len() * 4)
        .set(rqtc::RQT_MAX_SIZE.at(CONTEXT), max)
        .set(rqtc::RQT_ACTUAL_SIZE.at(CONTEXT), actual);
    let place = |at: usize| field(LIST + 32 * at + 8, 24);
    queues.iter().enumerate().fold(input, |input, (at, queue)| input.set(place(at), *queue))
}

#[test]
fn tables_have_at_most_the_advertised_size() {
    let Some(bench) = Bench::for_refusals() else { return };
    let mut answer = [0; 16 + 4096];
    bench.devx.command(&Input::new(0x100, 16).0, &mut answer).unwrap();
    let log_most = general::LOG_MAX_RQT_SIZE.at(0x80).get(&answer);
    assert_eq!(log_most, 11);
    let most = 1u64 << log_most;
    let rq = Rq::new(&bench.devx, &bench.uar, &bench.wire);
    let table = |max, actual, queues| table(max, actual, &vec![rq.number; queues]);
    assert_eq!(refused(&bench.devx, &table(2 * most, 1, 1)), BAD_PARAMETER);
    assert_eq!(refused(&bench.devx, &table(4, 5, 5)), BAD_PARAMETER);
    assert_eq!(refused(&bench.devx, &table(4, 4, 3)), BAD_INPUT_LENGTH);
    let (largest, _) = create(&bench.devx, &table(most, most, most as usize));
    largest.destroy().unwrap();

    let (object, number) = create(&bench.devx, &table(4, 1, 1));
    let change = |actual: u64, queues: usize| {
        let input = table(0, actual, queues).set(field(0, 16), 0x917u64);
        let input = input.set(field(0x48, 24), number).set(field(0x80, 64), 1u64);
        let mut answer = [0; 16];
        object.modify(&input.0, &mut answer).map_err(|_| u64::from(answer[0]))
    };
    assert_eq!(change(5, 5), Err(BAD_PARAMETER));
    assert_eq!(change(4, 3), Err(BAD_INPUT_LENGTH));
    change(4, 4).unwrap();
    assert_eq!(change(4, 3), Err(BAD_INPUT_LENGTH), "the fourth is not in the command");
    object.destroy().unwrap();
    rq.close();
    bench.close();
}
