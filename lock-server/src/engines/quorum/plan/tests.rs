use super::*;
use crate::engines::quorum::rules::view::{FORMAT, Meta};

const CLUSTER: &str = "q1";

fn id(text: &str) -> NodeId {
    text.parse().unwrap()
}

fn members(ids: &[&str]) -> Members {
    ids.iter().map(|text| id(text)).collect()
}

fn blank() -> NodeReport {
    let probe = NodeProbe { now_ms: 1_000, meta: None, p: BTreeMap::new() };
    NodeReport { found: Some((probe, "run".to_owned())), last_id: None }
}

fn silent(last_id: Option<&str>) -> NodeReport {
    NodeReport { found: None, last_id: last_id.map(id) }
}

fn node(state: NodeState, own: &str, view: u64, ids: &[&str]) -> NodeReport {
    of_cluster(CLUSTER, state, own, view, ids)
}

fn of_cluster(cluster: &str, state: NodeState, own: &str, view: u64, ids: &[&str]) -> NodeReport {
    let n = if cluster.is_empty() { 0 } else { 3 };
    let meta = Meta {
        format: FORMAT,
        view: View { cluster: cluster.to_owned(), n, view, members: members(ids) },
        node: id(own),
        state,
        run_id: "run".to_owned(),
        floor: 0,
        ready_at_ms: 1_500,
        covered_ms: 0,
    };
    let probe = NodeProbe { now_ms: 1_000, meta: Some(meta), p: BTreeMap::new() };
    NodeReport { found: Some((probe, "run".to_owned())), last_id: Some(id(own)) }
}

/// Report of an unverified node that remembers no quorum.
fn doubted(own: &str) -> NodeReport {
    of_cluster("", NodeState::Doubt, own, 0, &[])
}

const ABC: [&str; 3] = ["a", "b", "c"];

fn ready(own: &str) -> NodeReport {
    node(NodeState::Ready, own, 1, &ABC)
}

#[test]
fn a_new_quorum_waits_for_all_its_nodes() {
    let plan = plan(&[blank(), silent(None), blank()], None);
    assert_eq!(plan.actions, []);
    assert!(plan.problem.unwrap().contains("2 of 3 nodes answer"));
}

#[test]
fn a_new_quorum_begins_with_the_same_node_for_everybody() {
    let first = plan(&[blank(), doubted("b"), blank()], None);
    let doubts = [0, 2].map(|node| Action::Doubt { node });
    assert_eq!(first.actions, doubts);
    let nodes = [doubted("c"), doubted("a"), doubted("b")];
    let begin = Action::Begin { node: 1, id: id("a"), members: members(&ABC) };
    assert_eq!(plan(&nodes, None).actions, [begin]);
}

#[test]
fn a_quorum_that_was_begun_is_finished_by_the_next_server() {
    let begun = node(NodeState::New, "a", 1, &ABC);
    let next = plan(&[begun.clone(), doubted("b"), doubted("c")], None);
    let inits: Vec<usize> = next
        .actions
        .iter()
        .map(|action| match action {
            Action::Init { node, view, .. } if view.view == 1 => *node,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(inits, [1, 2]);
    // One that votes with the rest still untold could stand for a majority that does not know it.
    let all = ["a", "b", "c"].map(|own| node(NodeState::New, own, 1, &ABC));
    let last = plan(&all, None);
    assert!(last.actions.iter().all(|action| matches!(action, Action::Ready { .. })));
    assert_eq!(last.actions.len(), 3);
    let alone = plan(&[begun, silent(None), silent(None)], None);
    assert_eq!(alone.actions, []);
    assert!(alone.problem.is_some());
}

#[test]
fn a_node_that_votes_is_left_alone() {
    let plan = plan(&[ready("a"), ready("b"), silent(Some("c"))], Some(CLUSTER));
    assert_eq!((plan.actions, plan.problem), (vec![], None));
    assert_eq!(plan.standings, [Some(NodeStanding::Votes), Some(NodeStanding::Votes), None]);
    assert_eq!(plan.view.unwrap().members, members(&ABC));
}

#[test]
fn a_node_that_forgot_rejoins_by_a_bump_of_the_others() {
    let first = plan(&[ready("a"), blank(), ready("c")], Some(CLUSTER));
    assert_eq!(first.actions, [Action::Doubt { node: 1 }]);
    let next = plan(&[ready("a"), doubted("x"), ready("c")], Some(CLUSTER));
    match next.actions.as_slice() {
        [Action::Bump { view, voters, suspects }] => {
            assert_eq!((view.view, &view.members), (2, &members(&["a", "c", "x"])));
            assert_eq!((voters.as_slice(), suspects.len()), ([0, 2].as_slice(), 1));
        }
        other => panic!("{other:?}"),
    }
    // It waits, then votes; nothing else is to be done.
    let members = ["a", "c", "x"];
    let joining = [
        node(NodeState::Ready, "a", 2, &members),
        node(NodeState::Joining, "x", 2, &members),
        node(NodeState::Ready, "c", 2, &members),
    ];
    let last = plan(&joining, Some(CLUSTER));
    assert!(matches!(last.actions.as_slice(), [Action::Ready { node: 1, .. }]));
    assert_eq!(last.standings[1], Some(NodeStanding::Joins(500)));
}

/// At three nodes both others must be there: fewer could miss a token that the lost vote completed.
#[test]
fn a_node_does_not_rejoin_on_the_word_of_too_few() {
    let plan = plan(&[ready("a"), doubted("x"), silent(Some("c"))], Some(CLUSTER));
    assert_eq!(plan.actions, []);
    assert!(plan.problem.unwrap().contains("1 of 3 nodes are known to have their memory"));
}

#[test]
fn one_that_missed_a_view_follows_and_one_that_was_replaced_does_not() {
    let members = ["a", "b", "x"];
    let nodes = [node(NodeState::Ready, "a", 2, &members), ready("b"), ready("c")];
    let plan = plan(&nodes, Some(CLUSTER));
    assert!(matches!(&plan.actions[0], Action::Advance { node: 1, view } if view.view == 2));
    assert_eq!(plan.actions.len(), 1);
    assert!(
        matches!(&plan.standings[2], Some(NodeStanding::Not(why)) if why.contains("its place"))
    );
}

#[test]
fn most_of_the_memory_is_recovered_only_from_all() {
    let gone = [ready("a"), doubted("x"), doubted("y")];
    match plan(&gone, Some(CLUSTER)).actions.as_slice() {
        [Action::Recover { view, voters, suspects }] => {
            assert_eq!((view.view, voters.as_slice(), suspects.len()), (2, [0].as_slice(), 2));
            assert_eq!(view.members, members(&["a", "x", "y"]));
        }
        other => panic!("{other:?}"),
    }
    let away = [ready("a"), doubted("x"), silent(Some("y"))];
    assert_eq!(plan(&away, Some(CLUSTER)).actions, []);
}

/// A server that has not seen the quorum must take a lone member for another quorum's.
#[test]
fn a_lone_node_of_a_quorum_is_left_to_it() {
    for others in [[blank(), blank()], [doubted("x"), doubted("y")]] {
        let [one, two] = others;
        let plan = plan(&[ready("a"), one, two], None);
        assert_eq!((plan.actions, plan.view), (vec![], None));
        assert!(plan.problem.unwrap().contains("delete the keys"));
    }
}

#[test]
fn a_node_of_another_quorum_has_no_part() {
    let other = of_cluster("q2", NodeState::Ready, "z", 7, &["z"]);
    let plan = plan(&[ready("a"), other, ready("c")], None);
    assert_eq!(plan.actions, []);
    assert!(matches!(&plan.standings[1], Some(NodeStanding::Not(why)) if why.contains("q2")));
    assert_eq!(plan.view.unwrap().view, 1);
}

/// Two places are open and one of them may be that of the silent node: the server cannot
/// distinguish them.
#[test]
fn a_place_is_taken_only_where_it_is_known_whose_it_is() {
    let ids = ["a", "b", "c", "d", "e"];
    let ready = |own: &str| {
        let mut known = node(NodeState::Ready, own, 1, &ids);
        if let Some((probe, _)) = &mut known.found
            && let Some(meta) = &mut probe.meta
        {
            meta.view.n = 5;
        }
        known
    };
    let with = |e: NodeReport| [ready("a"), ready("b"), ready("c"), doubted("x"), e];
    let unknown = plan(&with(silent(None)), Some(CLUSTER));
    assert_eq!(unknown.actions, []);
    assert!(unknown.problem.is_some());
    match plan(&with(silent(Some("e"))), Some(CLUSTER)).actions.as_slice() {
        [Action::Bump { view, .. }] => {
            assert_eq!(view.members, members(&["a", "b", "c", "e", "x"]));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_copy_of_a_node_and_the_node_do_not_vote() {
    let only = |plan: &Plan| {
        let votes = plan.standings.iter().map(|standing| *standing == Some(NodeStanding::Votes));
        votes.collect::<Vec<_>>()
    };
    let copied = plan(&[ready("a"), ready("b"), ready("a")], None);
    assert_eq!(only(&copied), [false, true, false]);
    assert_eq!(copied.actions, []);
    let Some(NodeStanding::Not(why)) = &copied.standings[2] else { panic!("{copied:?}") };
    assert!(why.contains("nodes 1 and 3"), "{why}");
    let doubt = node(NodeState::Doubt, "a", 1, &ABC);
    let copied = plan(&[ready("a"), ready("b"), doubt], Some(CLUSTER));
    assert_eq!(only(&copied), [false, true, false]);
    assert_eq!(copied.actions, []);
    // The copy was emptied: it comes back as one that has forgotten.
    let emptied = plan(&[ready("a"), ready("b"), doubted("d")], Some(CLUSTER));
    assert!(matches!(emptied.actions.as_slice(), [Action::Bump { .. }]), "{emptied:?}");
}

/// An unverified node could not come back in the view that was made for it: the others stay where
/// they are, and it comes into that one. One that has forgotten again has another id, and needs a
/// new view.
#[test]
fn a_node_that_could_not_come_back_is_waited_for_in_its_view() {
    let moved = |own: &str| node(NodeState::Ready, own, 2, &["a", "c", "x"]);
    let view_for =
        |suspects: &str| match plan(&[moved("a"), doubted(suspects), moved("c")], Some(CLUSTER))
            .actions
            .as_slice()
        {
            [Action::Bump { view, .. }] => (view.view, view.members.clone()),
            other => panic!("{other:?}"),
        };
    assert_eq!(view_for("x"), (2, members(&["a", "c", "x"])));
    assert_eq!(view_for("y"), (3, members(&["a", "c", "y"])));
}
