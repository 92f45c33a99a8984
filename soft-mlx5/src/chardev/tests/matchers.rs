//! Matchers and flow rules in mlx5's own form, created by a program's requests.

use nix::errno::Errno;
use uverbs_uapi::enums::DriverId;
use uverbs_uapi::mlx5::object::{flow, flow_matcher};
use uverbs_uapi::request::Request;

use super::bench::*;
use super::raw_packet::{Setting, setting};

/// The options of a matcher.
#[derive(Clone)]
struct MatcherOptions {
    mask: Vec<u8>,
    element: u8,
    priority: u16,
    criteria: u8,
    table: Option<u64>,
    flags: Option<u32>,
}

/// A matcher of the destination address.
fn by_destination() -> MatcherOptions {
    let mut mask = vec![0; 384];
    mask[8..14].fill(0xff);
    MatcherOptions { mask, element: 0, priority: 0, criteria: 1, table: None, flags: None }
}

fn create_matcher(client: &Client, wanted: &MatcherOptions) -> Result<u32, Errno> {
    use flow_matcher::create::*;
    let mut request = Request::<Call>::new(DriverId::MLX5);
    request.new_handle(HANDLE);
    request.input_bytes(MATCH_MASK, &wanted.mask).unwrap();
    if wanted.element == 0 {
        request.select(FLOW_TYPE, 0, &wanted.priority);
    } else {
        request.select(FLOW_TYPE, wanted.element, &[0u8; 0]);
    }
    request.input(MATCH_CRITERIA, &wanted.criteria);
    if let Some(flags) = wanted.flags {
        request.flags(FLOW_FLAGS, flags);
    }
    if let Some(table) = wanted.table {
        request.constant(FT_TYPE, table);
    }
    client.run(&mut request)?;
    Ok(request.created(HANDLE).unwrap())
}

fn destroy_matcher(client: &Client, handle: u32) -> Result<(), Errno> {
    let mut request = Request::<flow_matcher::destroy::Call>::new(DriverId::MLX5);
    request.handle(flow_matcher::destroy::HANDLE, handle);
    client.run(&mut request)
}

/// A rule for the destination address `to`.
struct Rule {
    matcher: u32,
    to: [u8; 6],
    qp: Option<u32>,
    tag: Option<u32>,
    flags: u32,
}

impl Rule {
    fn make(&self, client: &Client) -> Result<u32, Errno> {
        use flow::create::*;
        let mut value = [0; 64];
        value[8..14].copy_from_slice(&self.to);
        let mut request = Request::<Call>::new(DriverId::MLX5);
        request.new_handle(HANDLE);
        request.input_bytes(MATCH_VALUE, &value).unwrap();
        request.handle(MATCHER, self.matcher);
        if let Some(qp) = self.qp {
            request.handle(DEST_QP, qp);
        }
        if let Some(tag) = &self.tag {
            request.input(TAG, tag);
        }
        request.flags(FLAGS, self.flags);
        client.run(&mut request)?;
        Ok(request.created(HANDLE).unwrap())
    }
}

fn destroy_rule(client: &Client, handle: u32) -> Result<(), Errno> {
    let mut request = Request::<flow::destroy::Call>::new(DriverId::MLX5);
    request.handle(flow::destroy::HANDLE, handle);
    client.run(&mut request)
}

#[test]
fn matchers_are_checked_as_the_kernel_checks_them() {
    let (_device, client) = alone();
    let with = |change: &dyn Fn(&mut MatcherOptions)| {
        let mut wanted = by_destination();
        change(&mut wanted);
        create_matcher(&client, &wanted).and_then(|handle| destroy_matcher(&client, handle))
    };
    assert_eq!(with(&|_| ()), Ok(()));
    assert_eq!(with(&|wanted| wanted.mask.truncate(6)), Ok(()), "the rest is zero");
    assert_eq!(with(&|wanted| wanted.mask.resize(512, 0)), Ok(()));
    assert_eq!(with(&|wanted| wanted.mask.resize(513, 0)), Err(Errno::EINVAL));
    assert_eq!(with(&|wanted| wanted.mask.clear()), Err(Errno::EINVAL));
    assert_eq!(with(&|wanted| wanted.element = 1), Ok(()), "refused when a rule is made");
    assert_eq!(with(&|wanted| wanted.element = 4), Err(Errno::EOPNOTSUPP));
    assert_eq!(with(&|wanted| wanted.table = Some(0)), Ok(()));
    assert_eq!(
        with(&|wanted| wanted.table = Some(1)),
        Err(Errno::EOPNOTSUPP),
        "a table of sent frames"
    );
    assert_eq!(with(&|wanted| wanted.table = Some(99)), Err(Errno::EINVAL));
    assert_eq!(with(&|wanted| wanted.flags = Some(1 << 2)), Err(Errno::EOPNOTSUPP));
    assert_eq!(with(&|wanted| wanted.flags = Some(1)), Err(Errno::EINVAL));
    let both = |wanted: &mut MatcherOptions| (wanted.table, wanted.flags) = (Some(0), Some(0));
    assert_eq!(with(&both), Err(Errno::EINVAL), "the table is given twice");
    assert_eq!(with(&|wanted| wanted.criteria = 3), Err(Errno::EOPNOTSUPP));
    assert_eq!(with(&|wanted| wanted.mask[18] = 1 << 5), Err(Errno::EOPNOTSUPP), "fragments");
    let unused = |wanted: &mut MatcherOptions| (wanted.criteria, wanted.mask[18]) = (0, 1 << 5);
    assert_eq!(with(&unused), Ok(()));
}

#[test]
fn rules_of_matchers_are_checked_as_the_kernel_checks_them() {
    let device = builder().build().unwrap();
    let (Setting { client, qp, .. }, ud) = &setting(&device);
    let matcher = create_matcher(client, &by_destination()).unwrap();
    let with = |change: &dyn Fn(&mut Rule)| {
        let (qp, to) = (Some(*qp), [2, 0, 0, 0, 0, 7]);
        let mut rule = Rule { matcher, to, qp, tag: None, flags: 0 };
        change(&mut rule);
        rule.make(client).and_then(|handle| destroy_rule(client, handle))
    };
    assert_eq!(with(&|_| ()), Ok(()));
    assert_eq!(with(&|rule| rule.qp = Some(*ud)), Err(Errno::EINVAL));
    assert_eq!(with(&|rule| rule.qp = None), Err(Errno::EINVAL), "no destination");
    assert_eq!(with(&|rule| rule.flags = 2), Err(Errno::EINVAL), "two destinations");
    let drops = |rule: &mut Rule| (rule.qp, rule.flags) = (None, 2);
    assert_eq!(with(&drops), Ok(()));
    let misses = |rule: &mut Rule| (rule.qp, rule.flags) = (None, 1);
    assert_eq!(with(&misses), Err(Errno::EOPNOTSUPP));
    let both = |rule: &mut Rule| (rule.qp, rule.flags) = (None, 3);
    assert_eq!(with(&both), Err(Errno::EINVAL));
    assert_eq!(with(&|rule| rule.tag = Some(1 << 24)), Err(Errno::EINVAL));
    assert_eq!(with(&|rule| rule.matcher = 99), Err(Errno::ENOENT));
    for (change, error) in [((1, 0), Errno::EOPNOTSUPP), ((0, 16), Errno::ENOMEM)] {
        let (element, priority) = change;
        let odd = create_matcher(client, &MatcherOptions { element, priority, ..by_destination() })
            .unwrap();
        assert_eq!(with(&|rule| rule.matcher = odd), Err(error));
    }
}

/// Both forms create the same kind of rule: they match frames together, and share tags.
#[test]
fn a_rule_keeps_its_matcher_and_conflicts_with_rules_of_the_verbs_form() {
    let device = builder().build().unwrap();
    let (Setting { client, qp, .. }, _) = &setting(&device);
    let matcher = create_matcher(client, &by_destination()).unwrap();
    let (qp, to) = (Some(*qp), [0xff; 6]);
    let rule = Rule { matcher, to, qp, tag: Some(7), flags: 0 }.make(client).unwrap();
    assert_eq!(destroy_matcher(client, matcher), Err(Errno::EBUSY));
    // The verbs' rule for the same address has no tag of its own, and gets the first rule's.
    assert!(super::raw_packet::rule_for_broadcast(client, qp.unwrap()).is_ok());
    let other = Rule { matcher, to, qp, tag: Some(8), flags: 0 };
    assert_eq!(other.make(client), Err(Errno::EEXIST));
    let drops = Rule { matcher, to, qp: None, tag: None, flags: 2 };
    assert_eq!(drops.make(client), Err(Errno::EEXIST), "the verbs' rule delivers");
    assert_eq!(destroy_rule(client, rule), Ok(()));
    assert_eq!(drops.make(client), Err(Errno::EEXIST), "the verbs' rule is still there");
    assert_eq!(destroy_matcher(client, matcher), Ok(()));
}
