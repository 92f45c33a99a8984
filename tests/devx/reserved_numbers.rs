//! QP numbers that no queue pair gets.

use uverbs::qp_type::Rc;
use uverbs_soft_adapter::firmware::layout::capability::{general, general_2};
use uverbs_soft_adapter::firmware::layout::command::{general_object, header};

use crate::common;
use crate::firmware::{CONTEXT, Input};
use crate::{BAD_PARAMETER, capability, refused, setup};

/// `MLX5_OBJ_TYPE_RESERVED_QPN`.
const RESERVED_QPN: u64 = 0x2c;

/// The numbers of a general object, which UCX's connection manager uses in place of those of queue
/// pairs.
#[test]
fn numbers_are_reserved_in_ranges() {
    let Some((setup, devx)) = setup() else { return };
    let mut shown = vec![0; 16 + 4096];
    devx.command(&Input::new(0x100, 16).set(header::OP_MOD, 0x41u64).0, &mut shown).unwrap();
    let log_numbers = general_2::LOG_RESERVED_QPN_GRANULARITY.at(CONTEXT).get(&shown);
    assert_eq!(capability(&devx, general::GENERAL_OBJ_TYPES) >> RESERVED_QPN & 1, 1);
    let range = |log_numbers: u64| {
        Input::new(0xa00, 16 + 256)
            .set(general_object::TYPE, RESERVED_QPN)
            .set(general_object::LOG_RANGE, log_numbers)
    };
    let ranges = [(); 3].map(|()| {
        let mut answer = [0; 16];
        let object = devx.create(&range(log_numbers).0, &mut answer).unwrap();
        let first = general_object::ID.get32(&answer);
        (object, first..first + (1 << log_numbers))
    });
    for (index, (_, range)) in ranges.iter().enumerate() {
        assert_eq!(range.start % (1 << log_numbers), 0);
        assert!(ranges[..index].iter().all(|(_, other)| other.start != range.start));
    }
    let queue = setup.builder::<Rc>().build().unwrap();
    assert!(ranges.iter().all(|(_, range)| !range.contains(&queue.number())));
    if common::is_soft() {
        assert_eq!(refused(&devx, &range(log_numbers + 1)), BAD_PARAMETER);
        let encryption = Input::new(0xa00, 128).set(general_object::TYPE, 0xcu64);
        assert_eq!(refused(&devx, &encryption), BAD_PARAMETER);
    }
    for (object, _) in ranges {
        object.destroy().unwrap();
    }
}
