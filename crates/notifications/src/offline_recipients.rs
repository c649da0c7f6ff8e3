//! Who is to be notified of an entry while no session of theirs takes messages. All channels ask the same: what is looked up here,
//! [`gate`] judges.

use crate::{
    gate::{self, Asked, ConversationMessage, DueTimes, Member, Unwanted, WantedMessage},
    log::{NotificationLog, Record, RecordRows, Source},
    policy::{CompiledPolicy, NotificationPolicies},
    quiet_hours::QuietHours,
};
use rustc_hash::FxHashMap;
use std::{cell::RefCell, collections::hash_map::Entry, rc::Rc, sync::Arc};
use tidings_domain::{
    chat_rows,
    clock::Clock,
    desks::{Assignment, assignment_key},
    feed_notes::FeedNotes,
    gates::OpenGates,
    leadership::Leadership,
    metrics::Metrics,
    model::*,
    store::{End, OutboxItem, RowSpace, Store, StoreResult},
};
use tidings_engine::{
    directory::{Directory, MemberList, PushDevices},
    engine::port::Proposals,
    presence::Presence,
};
use tidings_popups::UserContextSource;
use tidings_protocol::http::{NotificationOutcome, PolicyChannel};
use tidings_push::PushHandle;

/// The members of a conversation up to which it is recorded who was not notified, and why: in larger ones most are not, and each costs a part of
/// a row with each message.
const TRACED_MEMBERS_MAX: u64 = 1_000;
/// The members of a conversation up to which they are kept in memory for a round.
const ROUND_MEMBERS_MAX: usize = 2_000;
/// Members in one read.
const MEMBERS_AT_ONCE: usize = 1_000;

/// The parts of the engine that offline push uses.
pub(crate) struct OfflinePushContext {
    pub store: Arc<dyn Store>,
    pub clock: Arc<dyn Clock>,
    pub directory: Arc<Directory>,
    pub presence: Arc<Presence>,
    pub proposals: Proposals,
    pub feed_notes: Arc<FeedNotes>,
    pub lead: Leadership,
    pub metrics: Arc<Metrics>,
    pub trace: Arc<NotificationLog>,
    pub policies: Arc<NotificationPolicies>,
    /// Of which conversations messages wait for the end of quiet hours.
    pub quiet_hours: QuietHours,
    /// Which forms of rows are written.
    pub gates: Arc<OpenGates>,
    /// Of which pushes devices fall back to providers.
    pub push: Arc<PushHandle>,
    /// What conditions of the policy ask about users.
    pub users: Arc<dyn UserContextSource>,
}

/// An entry, and those who are to be notified of it. Those of a conversation that is too large for a list in memory are found page by
/// page: the members of a conversation with a million followers are never in memory all at once.
pub(crate) struct OfflineRecipients {
    pub(crate) conversation: Arc<Conversation>,
    pub(crate) entry: StoredEntry,
    /// As [`ConversationMessage::defers_until`].
    defers_until: u64,
    members: RefCell<Members>,
    directory: Arc<Directory>,
}

/// The members of whom it is still to be asked.
#[derive(Clone)]
enum Members {
    Listed(MemberList, Option<RoundMembers>),
    After(Option<UserNo>),
    None,
}

/// A person who may be notified of an entry.
pub(crate) struct Candidate {
    pub(crate) user: Arc<User>,
    /// The person's mute of the conversation.
    pub(crate) mute: MuteState,
    /// Whether somebody looks at a session of the person.
    pub(crate) is_active: bool,
    /// The devices that providers reach; `None`: they are to be looked up.
    pub(crate) devices: Option<PushDevices>,
}

/// Members of a conversation in a round, in the order of its list.
type RoundMembers = Rc<[RoundMember]>;

/// What is looked up of a member once in a round.
enum RoundMember {
    Person {
        user: Arc<User>,
        is_active: bool,
        devices: Option<PushDevices>,
    },
    /// An account, for which its agents are notified; or nobody any more.
    Other,
}

/// People whom a worker has looked up in a round: the rows of a busy conversation name the same ones. A round lasts for milliseconds.
#[derive(Default)]
pub(crate) struct RoundPeople(FxHashMap<(ConversationNo, UserNo), Option<FoundPerson>>);

struct FoundPerson {
    user: Arc<User>,
    /// The member for whom the person is notified, unless it is none any more.
    member: Option<Member>,
    is_active: bool,
}

impl RoundPeople {
    /// The person with this number, and why the person is not to know of the entry by this channel; `None`: there is no such person
    /// any more. `even_online`: a session of the person is no reason.
    pub(crate) fn find(
        &mut self,
        context: &OfflinePushContext,
        found: &OfflineRecipients,
        no: UserNo,
        channel: PolicyChannel,
        even_online: bool,
    ) -> StoreResult<Option<(Arc<User>, Option<Unwanted>)>> {
        let person = match self.0.entry((found.conversation.no, no)) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(place) => {
                let user = context.directory.user(no)?;
                let found = match user {
                    Some(user) => {
                        let member = member(context, &found.conversation, &user)?;
                        Some(FoundPerson { member, is_active: context.presence.is_active(no), user })
                    }
                    None => None,
                };
                place.insert(found)
            }
        };
        Ok(person.as_ref().map(|FoundPerson { user, member, is_active }| {
            let asked = found.asked(user, *member, *is_active && !even_online);
            (user.clone(), gate::why_not(channel, &asked, context.clock.now_ms()))
        }))
    }
}

/// The members of conversations of which a round has several messages: a busy conversation has hundreds in one. All of the round's
/// messages are committed before the first member is looked up.
#[derive(Default)]
pub(crate) struct RoundLookups {
    messages: FxHashMap<ConversationNo, usize>,
    found: FxHashMap<ConversationNo, (MemberList, RoundMembers)>,
}

impl RoundLookups {
    pub(crate) fn of(items: &[OutboxItem]) -> RoundLookups {
        let mut lookups = RoundLookups::default();
        for item in items {
            *lookups.messages.entry(item.conversation).or_default() += 1;
        }
        lookups
    }

    /// Looks up the members of a list, which is as new as all messages of the round; `None`: to look them up for this message alone is as
    /// good.
    fn members(
        &mut self,
        context: &OfflinePushContext,
        conversation: ConversationNo,
        list: &MemberList,
        has_providers: bool,
    ) -> StoreResult<Option<RoundMembers>> {
        let is_busy = self.messages.get(&conversation).is_some_and(|messages| *messages > 1);
        if !is_busy || list.len() > ROUND_MEMBERS_MAX {
            return Ok(None);
        }
        let users: Vec<UserNo> = list.iter().map(|(user, _)| *user).collect();
        let mut devices = if has_providers {
            context.directory.push_devices(&users, true)?.into_iter().map(Some).collect()
        } else {
            vec![None; users.len()]
        };
        let member = |(no, devices): (&UserNo, &mut Option<PushDevices>)| {
            let is_account = context.directory.desks.of_user(*no).is_some();
            Ok(match context.directory.user(*no)?.filter(|_| !is_account) {
                Some(user) => {
                    let is_active = context.presence.is_active(*no);
                    RoundMember::Person { user, is_active, devices: devices.take() }
                }
                None => RoundMember::Other,
            })
        };
        let members: RoundMembers = users.iter().zip(&mut devices).map(member).collect::<StoreResult<Vec<_>>>()?.into();
        self.found.insert(conversation, (list.clone(), members.clone()));
        Ok(Some(members))
    }
}

/// Some members of a conversation, and whether they are to be notified of an entry.
#[derive(Default)]
pub(crate) struct RecipientPage {
    pub(crate) notified: Vec<Candidate>,
    /// Those who are not, and why; without the sender, and those who were no members yet.
    pub(crate) left_out: Vec<(UserNo, NotificationOutcome)>,
}

impl OfflineRecipients {
    /// An entry that is at hand, to ask of single users.
    pub(crate) fn for_one(
        context: &OfflinePushContext,
        conversation: Arc<Conversation>,
        entry: StoredEntry,
    ) -> OfflineRecipients {
        OfflineRecipients::among(context, conversation, entry, Members::None)
    }

    fn among(
        context: &OfflinePushContext,
        conversation: Arc<Conversation>,
        entry: StoredEntry,
        members: Members,
    ) -> OfflineRecipients {
        let defers_until = context.quiet_hours.defer_until(&context.gates, conversation.kind, entry.at);
        let directory = context.directory.clone();
        OfflineRecipients { conversation, entry, defers_until, members: RefCell::new(members), directory }
    }

    /// An entry that is at hand, to ask of all members. `is_current`: what the directory has is as new as the entry.
    pub(crate) fn for_all(
        context: &OfflinePushContext,
        conversation: Arc<Conversation>,
        entry: StoredEntry,
        is_current: bool,
        lookups: &mut RoundLookups,
        has_providers: bool,
    ) -> StoreResult<OfflineRecipients> {
        let known = lookups.found.get(&conversation.no).filter(|_| is_current).cloned();
        let listed = || if is_current { context.directory.members(&conversation) } else { Ok(None) };
        let members = match known {
            Some((list, members)) => Members::Listed(list, Some(members)),
            None => match listed()? {
                Some(list) => {
                    let members = lookups.members(context, conversation.no, &list, has_providers)?;
                    Members::Listed(list, members)
                }
                None => Members::After(None),
            },
        };
        Ok(OfflineRecipients::among(context, conversation, entry, members))
    }

    /// The same, to ask all members of this entry in place of its own.
    pub(crate) fn of_entry(&self, entry: StoredEntry) -> OfflineRecipients {
        let (conversation, defers_until) = (self.conversation.clone(), self.defers_until);
        let directory = self.directory.clone();
        OfflineRecipients { conversation, entry, defers_until, members: self.members.clone(), directory }
    }

    /// Whether the members were looked up for all messages of the round.
    pub(crate) fn has_round_members(&self) -> bool {
        matches!(*self.members.borrow(), Members::Listed(_, Some(_)))
    }

    /// The `seq` through which the conversation's entries from this one on are alike to the members: between them none joined or
    /// read. `None`: that is not known, or depends on more than the members.
    pub(crate) fn alike_through(&self) -> Option<u64> {
        let Members::Listed(list, Some(members)) = &*self.members.borrow() else { return None };
        if members.iter().any(|member| matches!(member, RoundMember::Other)) {
            return None;
        }
        let ends = list.iter().flat_map(|(_, membership)| [membership.joined_seq, membership.read_seq]);
        Some(ends.filter(|end| *end >= self.entry.seq).min().unwrap_or(u64::MAX))
    }

    /// To ask of single users. `None` when there is nobody to be notified any more: the message was recalled, retention removed
    /// the entry, or the conversation is deleted.
    pub(crate) fn of(
        context: &OfflinePushContext,
        conversation: ConversationNo,
        seq: u64,
    ) -> StoreResult<Option<OfflineRecipients>> {
        let Some(conversation) = context.directory.readable_conversation(conversation)? else { return Ok(None) };
        let found = context.store.entries(conversation.no, seq, seq, 1, End::Oldest)?;
        let entry = found.into_iter().next().filter(|entry| !is_recalled(entry));
        Ok(entry.map(|entry| OfflineRecipients::for_one(context, conversation, entry)))
    }

    /// Where the entry is.
    pub(crate) fn message(&self) -> OutboxItem {
        OutboxItem { position: self.entry.position, conversation: self.conversation.no, seq: self.entry.seq }
    }

    /// Those of the next members who may be notified by some channel of the policy when it is due; `None` after the last. A page may be
    /// empty.
    pub(crate) fn next_page(
        &self,
        context: &OfflinePushContext,
        policy: &CompiledPolicy,
    ) -> StoreResult<Option<RecipientPage>> {
        let found;
        let mut known = None;
        let members: &[(UserNo, Membership)] = match self.members.replace(Members::None) {
            Members::None => return Ok(None),
            Members::Listed(list, members) => {
                (found, known) = (list, members);
                &found
            }
            Members::After(after) => {
                found = Arc::new(context.store.members(self.conversation.no, after, MEMBERS_AT_ONCE)?);
                if found.len() == MEMBERS_AT_ONCE {
                    self.members.replace(Members::After(found.last().map(|(user, _)| *user)));
                }
                &found
            }
        };
        let times = self.due_times(policy, context.clock.now_ms());
        let last_due = times.last();
        let is_account = |user: &UserNo| context.directory.desks.of_user(*user).is_some();
        let mut page = RecipientPage { notified: Vec::with_capacity(members.len()), ..RecipientPage::default() };
        for (at, (no, membership)) in members.iter().enumerate() {
            let member = Member::of(*no, membership);
            // Ahead of a person's other wishes, since it costs no look-up.
            let unwanted = gate::why_not_of_member(self.of_conversation(), &member);
            if let Some(Unwanted { outcome, .. }) = unwanted.or_else(|| gate::muted(membership.mute, last_due)) {
                if !matches!(outcome, NotificationOutcome::Sender | NotificationOutcome::JoinedLater) {
                    page.left_out.push((*no, outcome));
                }
                continue;
            }
            let mute = membership.mute;
            if let Some(RoundMember::Person { user, is_active, devices }) = known.as_ref().and_then(|all| all.get(at)) {
                let (user, devices) = (user.clone(), devices.clone());
                self.add(&mut page, Candidate { user, mute, is_active: *is_active, devices }, times);
                continue;
            }
            if !is_account(no) {
                let is_active = context.presence.is_active(*no);
                self.look_up(&mut page, context, (*no, mute), is_active, times)?;
                continue;
            }
            let people = self.people_of(context, *no)?;
            let is_active = people.iter().any(|person| context.presence.is_active(*person));
            for person in people {
                self.look_up(&mut page, context, (person, mute), is_active, times)?;
            }
        }
        Ok(Some(page))
    }

    /// Adds the person with this number.
    fn look_up(
        &self,
        page: &mut RecipientPage,
        context: &OfflinePushContext,
        (person, mute): (UserNo, MuteState),
        is_active: bool,
        times: DueTimes<'_>,
    ) -> StoreResult<()> {
        if let Some(user) = context.directory.user(person)? {
            self.add(page, Candidate { user, mute, is_active, devices: None }, times);
        }
        Ok(())
    }

    /// Adds a person, who wants to be notified by some channel at least or does not. Each channel asks again about itself.
    fn add(&self, page: &mut RecipientPage, person: Candidate, times: DueTimes<'_>) {
        let Candidate { user, mute, is_active, .. } = &person;
        match gate::why_not_by_any(self.wanted(user, *mute), user, times).filter(|_| !is_active) {
            Some(Unwanted { outcome, .. }) => page.left_out.push((user.no, outcome)),
            None => page.notified.push(person),
        }
    }

    /// The entry, as far as a person's wishes go.
    pub(crate) fn wanted(&self, user: &User, mute: MuteState) -> WantedMessage {
        let (kind, defers_until) = (self.conversation.kind, self.defers_until);
        let (is_hidden, mentions_person) = self.hides_or_mentions(user);
        WantedMessage { is_hidden, kind, mentions_person, mute, defers_until }
    }

    /// The rows of what was decided of these members; `None`: of conversations above [`TRACED_MEMBERS_MAX`] nothing is recorded.
    pub(crate) fn record_rows(
        &self,
        context: &OfflinePushContext,
        part: u64,
        records: Vec<Record>,
    ) -> Option<RecordRows> {
        let is_traced = self.conversation.member_count <= TRACED_MEMBERS_MAX;
        is_traced.then(|| context.trace.rows(Source::Search { part }, context.clock.now_ms(), records))
    }

    /// Why a channel that is due does not notify this user of the entry; `None`: it does. `even_online`: a session of the user is no reason.
    pub(crate) fn why_not(
        &self,
        context: &OfflinePushContext,
        user: &User,
        channel: PolicyChannel,
        even_online: bool,
    ) -> StoreResult<Option<Unwanted>> {
        let is_active = !even_online && context.presence.is_active(user.no);
        let asked = self.asked(user, member(context, &self.conversation, user)?, is_active);
        Ok(gate::why_not(channel, &asked, context.clock.now_ms()))
    }

    /// Why this one user, online or not, is notified of the entry by none of the present policy's channels; `None`: by one at least.
    pub(crate) fn why_unwanted(&self, context: &OfflinePushContext, user: &User) -> StoreResult<Option<Unwanted>> {
        let asked = self.asked(user, member(context, &self.conversation, user)?, false);
        let policy = context.policies.current();
        Ok(gate::why_not_by_channels(&asked, self.due_times(&policy, context.clock.now_ms())))
    }

    /// The user's mute of the conversation, or why the user is not to know of the entry whatever the channels are.
    pub(crate) fn mute_of(
        &self,
        context: &OfflinePushContext,
        user: &User,
    ) -> StoreResult<Result<MuteState, Unwanted>> {
        let Some(member) = member(context, &self.conversation, user)? else {
            return Ok(Err(Unwanted::always(NotificationOutcome::NotAMember)));
        };
        let unwanted = gate::why_not_of_member(self.of_conversation(), &member);
        Ok(unwanted.map_or(Ok(member.mute), Err))
    }

    fn due_times<'a>(&self, policy: &'a CompiledPolicy, now_ms: u64) -> DueTimes<'a> {
        DueTimes { delays: policy.delays(), sent_at: self.entry.at, now_ms }
    }

    fn of_conversation(&self) -> ConversationMessage {
        let sender = self.entry.content.sender.as_ref().map(|sender| sender.no);
        let (kind, seq, defers_until) = (self.conversation.kind, self.entry.seq, self.defers_until);
        ConversationMessage { kind, seq, sender, defers_until }
    }

    fn asked<'a>(&self, user: &'a User, member: Option<Member>, is_active: bool) -> Asked<'a> {
        let (is_hidden, mentions_person) = self.hides_or_mentions(user);
        Asked { user, member, message: self.of_conversation(), is_hidden, mentions_person, is_active }
    }

    /// Whether the user blocks the sender in a conversation that hides that, and whether the entry mentions the user: a mention by
    /// somebody whom the user blocks is none.
    fn hides_or_mentions(&self, user: &User) -> (bool, bool) {
        let blocks = self.entry.content.sender.as_ref().is_some_and(|sender| {
            // While the store cannot say, nobody is disturbed by somebody whom they block.
            self.directory.has_blocked(user, sender.no).unwrap_or(true)
        });
        (blocks && self.conversation.blocks_mode() == BlocksMode::Hide, !blocks && self.mentions(user))
    }

    fn mentions(&self, user: &User) -> bool {
        let content = &self.entry.content;
        content.mentions_all() || content.mentioned_ids().any(|id| id == user.id)
    }

    /// Who is to be notified in a member's place: of an account the agent who has the conversation, or all agents if nobody has it.
    fn people_of(&self, context: &OfflinePushContext, member: UserNo) -> StoreResult<Vec<UserNo>> {
        let Some(desk) = context.directory.desks.of_user(member) else { return Ok(vec![member]) };
        let row = context.store.row(RowSpace::Chat, &assignment_key(self.conversation.no))?;
        let assignment: Option<Assignment> = chat_rows::decode(row.as_deref())?;
        let agent = assignment.and_then(|assignment| assignment.agent);
        Ok(match agent.filter(|agent| desk.has_agent(agent.no)) {
            Some(agent) => vec![agent.no],
            None => desk.agents.iter().map(|agent| agent.no).collect(),
        })
    }
}

/// The member of a conversation for whom a user is notified: an agent is for the account. `None`: neither is a member.
pub(crate) fn member(
    context: &OfflinePushContext,
    conversation: &Conversation,
    user: &User,
) -> StoreResult<Option<Member>> {
    let sides = context.directory.desks.sides(conversation.pair);
    let served = sides.filter(|sides| user.no != sides.customer && sides.desk.has_agent(user.no));
    let no = served.map_or(user.no, |sides| sides.desk.desk.user.no);
    let Some(membership) = context.directory.membership(conversation.no, no)? else { return Ok(None) };
    let member = Member::of(no, &membership);
    // What the member has cleared counts as read.
    let cleared_seq = context.directory.preferences(conversation.no, no)?.cleared_seq;
    Ok(Some(Member { read_seq: member.read_seq.max(cleared_seq), ..member }))
}

/// Whether the user has read or cleared the message, or is no member any more.
pub(crate) fn is_read(
    context: &OfflinePushContext,
    user: UserNo,
    conversation: ConversationNo,
    seq: u64,
) -> StoreResult<bool> {
    let directory = &context.directory;
    let Some(details) = directory.conversation(conversation)? else { return Ok(true) };
    // An agent reads for the account.
    let sides = directory.desks.sides(details.pair);
    let served = sides.filter(|sides| user != sides.customer && sides.desk.has_agent(user));
    let member = served.map_or(user, |sides| sides.desk.desk.user.no);
    let membership = directory.membership(conversation, member)?;
    let is_read = membership.is_none_or(|membership| membership.read_seq >= seq);
    Ok(is_read || directory.preferences(conversation, member)?.cleared_seq >= seq)
}

pub(crate) fn is_recalled(entry: &StoredEntry) -> bool {
    entry.content.is_recalled()
}
