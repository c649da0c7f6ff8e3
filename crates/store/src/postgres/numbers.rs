//! The numbers of users and conversations, reserved in blocks. A node gives out of its blocks what a batch needs, so that the
//! counters, which every commit locks, are never locked while a batch is decided.
//!
//! A block's first numbers serve the batch that asked for it; the rest serves later batches. A process that stops gives it back,
//! and one that is killed leaves it unused. A block is at most twice as large as the one before it, so it leaves at most as many numbers as it
//! has used, and never more than [`BLOCK_MAX`].

use super::connection::{Connection, bigint, number};
use super::failure::Failure;
use tidings_domain::{
    model::{ConversationNo, UserNo},
    store::Orders,
};
use tokio_postgres::Row;

/// The largest block, unless a single batch needs more.
const BLOCK_MAX: u64 = 256;

/// A statement of its own, and so a transaction of its own: it waits for commits that are under way, and no commit waits
/// longer for it than for the database.
const RESERVE: &str = "UPDATE counters SET users = users + $1::bigint, conversations = conversations + $2::bigint \
     RETURNING users, conversations";
/// The same for a conversation of an order.
const RESERVE_IN_ORDER: &str = "WITH o AS (UPDATE orders SET conversations = conversations + $2::bigint WHERE ord = $3 \
     RETURNING conversations) \
     UPDATE counters c SET users = c.users + $1::bigint FROM o RETURNING c.users, o.conversations";

/// Numbers that are reserved and not given out yet.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Numbers {
    users: Block,
    /// Of several orders, each gives out every so many-th number.
    conversations: Block,
    order: Option<Order>,
}

/// One of several orders.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Order {
    number: u16,
    of: u16,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Block {
    /// The last number given out.
    last: u64,
    /// The last number reserved.
    end: u64,
    /// How many numbers the last reservation took.
    size: u64,
}

impl Block {
    /// The next number. The caller has made sure that there is one.
    pub(crate) fn take(&mut self) -> u64 {
        debug_assert!(self.last < self.end, "a number that is not reserved");
        self.last += 1;
        self.last
    }

    /// How many numbers to reserve for a batch that needs `needed`.
    fn lacks(&self, needed: u64) -> u64 {
        match needed.saturating_sub(self.end - self.last) {
            0 => 0,
            lacking => lacking.max((self.size * 2).min(BLOCK_MAX)),
        }
    }

    /// Takes `count` more numbers, which end at `end`. If another node has reserved in between, the rest of the old block is
    /// left out, and `needed` numbers must be in the new one.
    fn extended(self, count: u64, end: u64) -> Block {
        match count {
            0 => self,
            _ if end - count == self.end => Block { end, size: count, ..self },
            _ => Block { last: end - count, end, size: count },
        }
    }
}

impl Numbers {
    /// None that are reserved.
    pub(crate) fn of_order(number: u16, orders: Orders) -> Numbers {
        let order = (orders != Orders::ONE).then_some(Order { number, of: orders.count() });
        Numbers { order, ..Numbers::default() }
    }

    /// The number of a new user. The caller has made sure that there is one, as for a conversation.
    pub(crate) fn take_user(&mut self) -> UserNo {
        UserNo(self.users.take())
    }

    pub(crate) fn take_conversation(&mut self) -> ConversationNo {
        let number = self.conversations.take();
        ConversationNo(match self.order {
            None => number,
            Some(order) => number * u64::from(order.of) + u64::from(order.number),
        })
    }

    /// Forgets what is reserved.
    pub(crate) fn forget(&mut self) {
        *self = Numbers { order: self.order, ..Numbers::default() };
    }

    pub(crate) fn suffice(&self, users: u64, conversations: u64) -> bool {
        self.users.lacks(users) == 0 && self.conversations.lacks(conversations) == 0
    }

    /// The statement that gives back what is reserved and not given out; `None`: there is nothing.
    pub(crate) fn give_back(&self) -> Option<String> {
        let rest = |column: &str, block: &Block| {
            let Block { last, end, .. } = block;
            format!("{column} = CASE WHEN {column} = {end} THEN {last} ELSE {column} END")
        };
        let Numbers { users, conversations, order } = self;
        let [of_users, of_conversations] = [rest("users", users), rest("conversations", conversations)];
        (users.last < users.end || conversations.last < conversations.end).then(|| match order {
            None => format!("UPDATE counters SET {of_users}, {of_conversations}"),
            Some(Order { number, .. }) => {
                format!("UPDATE orders SET {of_conversations} WHERE ord = {number}; UPDATE counters SET {of_users}")
            }
        })
    }

    /// Reserves until there are so many numbers for users and conversations.
    pub(crate) async fn reserve(
        &mut self,
        connection: &Connection,
        users: u64,
        conversations: u64,
    ) -> Result<(), Failure> {
        while !self.suffice(users, conversations) {
            let counts = [self.users.lacks(users), self.conversations.lacks(conversations)];
            let [of_users, of_conversations] = counts.map(bigint);
            let rows = match self.order {
                None => connection.query(RESERVE, &[&of_users, &of_conversations]).await?,
                Some(Order { number, .. }) => {
                    connection.query(RESERVE_IN_ORDER, &[&of_users, &of_conversations, &(number as i16)]).await?
                }
            };
            let ends = |row: &Row| [number(row, 0), number(row, 1)];
            let Some(ends) = rows.first().map(ends) else {
                return Err(Failure::Incompatible("the table of counters is empty".into()));
            };
            self.users = self.users.extended(counts[0], ends[0]);
            self.conversations = self.conversations.extended(counts[1], ends[1]);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives out `used` numbers one by one while `others` numbers are reserved by others between; answers the block and the
    /// numbers.
    fn give_out(used: u64, others: u64) -> (Block, Vec<u64>, u64) {
        let (mut block, mut reserved, mut given) = (Block::default(), 0, Vec::new());
        for _ in 0..used {
            while block.lacks(1) > 0 {
                let count = block.lacks(1);
                reserved += others + count;
                block = block.extended(count, reserved);
            }
            given.push(block.take());
        }
        (block, given, reserved)
    }

    #[test]
    fn a_node_alone_gives_out_numbers_without_a_hole() {
        let (_, given, _) = give_out(1_000, 0);
        assert!(given.into_iter().eq(1..=1_000));
    }

    #[test]
    fn no_number_is_given_out_twice_and_none_of_others() {
        let (_, given, _) = give_out(1_000, 7);
        assert!(given.windows(2).all(|pair| pair[0] < pair[1]));
        assert_eq!(given[0], 8);
    }

    #[test]
    fn a_process_leaves_no_more_numbers_unused_than_it_used_and_never_more_than_a_block() {
        for used in 1..=2_000 {
            let (block, _, _) = give_out(used, 0);
            let unused = block.end - block.last;
            assert!(unused <= used && unused < BLOCK_MAX, "{used} used, {unused} unused");
        }
    }

    #[test]
    fn a_batch_that_needs_more_than_a_block_gets_it_at_once() {
        let block = Block { last: 10, end: 12, size: 4 };
        assert_eq!(block.lacks(2), 0);
        assert_eq!(block.lacks(1_002), 1_000);
        let others_came_between = block.extended(1_000, 5_000);
        assert_eq!(others_came_between.lacks(1_002), 2 + 254, "the two of the old block are left out");
    }
}
