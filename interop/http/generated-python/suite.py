"""What an app's server does, by a client that was generated: nothing here knows a path or a field's name on the wire."""

import importlib.metadata
import os
import re
from pathlib import Path

from tidings_client import AuthenticatedClient, models
from tidings_client.api.conversations import create_conversation
from tidings_client.api.messages import list_messages, send
from tidings_client.api.popups import decide, put_popup, report_events
from tidings_client.api.push import get_push, send_push
from tidings_client.api.users import get_user, upsert_users

from harness.tap import Tap

CONVERSATION = "gen-py-house"
client = AuthenticatedClient(base_url=os.environ["TIDINGS_URL"], token=os.environ["TIDINGS_API_KEY"], timeout=60)
tap = Tap(f"openapi-python-client {importlib.metadata.version('openapi-python-client')} (httpx)")

# Media types that this generator has no reader or writer for; everything else must be generated.
log = (Path(os.environ["INTEROP_TMP"]) / "generator.log").read_text()
warnings = set(re.findall(r"WARNING parsing ([A-Z]+ \S+)", log))
known = {
    "GET /metrics",
    "GET /v1/events/stream",
    "GET /v1/export",
    "POST /v1/import",
    "GET /v1/users/{user}/export",
    "PUT /v1/popup-segments/{segment}",
    "POST /v1/stream/{stream}",
}
tap.report("all but the seven that are no JSON are generated", warnings <= known, log)


def users():
    ada = models.UserUpsert(id="gen-py-ada", name="Ada")
    made = upsert_users.sync(client=client, body=models.UsersUpsert(users=[ada, models.UserUpsert(id="gen-py-ben")]))
    assert made.created == 2, made
    assert get_user.sync("gen-py-ada", client=client).name == "Ada"


def conversation():
    group = models.CreateConversation(kind=models.ConversationKind.GROUP, id=CONVERSATION, owner="gen-py-ada", members=["gen-py-ben"])
    opened = create_conversation.sync_detailed(client=client, body=group)
    assert opened.status_code == 201 and opened.parsed.member_count == 2, opened


def message(number):
    return models.SendRequest(conversation=CONVERSATION, from_="gen-py-ada", client_msg_id=f"m{number}", body={"text": number})


def sends():
    receipts = [send.sync(client=client, body=message(number)) for number in range(7)]
    first = receipts[0].seq
    assert [receipt.seq for receipt in receipts] == list(range(first, first + 7)), receipts
    again = send.sync(client=client, body=message(6))
    assert again.duplicate is True and again.seq == receipts[6].seq, again
    return first


def pages(first, way, limit):
    page = list_messages.sync(CONVERSATION, client=client, limit=limit, **first)
    read = []
    while True:
        seqs = [entry.seq for entry in page.entries]
        read = read + seqs if way == "next" else seqs + read
        cursor = getattr(page, {"next": "next_"}.get(way, way))
        if not cursor:
            return read
        page = list_messages.sync(CONVERSATION, client=client, limit=limit, cursor=cursor)


def reads(first):
    for limit in (1, 3, 100):
        assert pages({"from_seq": first}, "next", limit) == list(range(first, first + 7))
        assert pages({}, "previous", limit) == list(range(1, first + 7))


def popup():
    content = models.PopupContent(title="Hello")
    spec = models.PopupSpec(placements=["gen-py"], variants=[models.PopupVariant(id="a", content=content)], state=models.PopupState.LIVE)
    kept = put_popup.sync("gen-py", client=client, body=spec, tidings_author="interop")
    assert kept.updated_by == "interop", kept
    decision = decide.sync(client=client, body=models.DecideRequest(placement="gen-py", user="gen-py-ben"))
    assert decision.popup == "gen-py" and decision.content.title == "Hello", decision
    event = models.PopupEvent(id="gen-py-1", decision=decision.decision, type_=models.PopupEventKind.CLICK)
    assert report_events.sync(client=client, body=models.PopupEvents(events=[event])).accepted == 1
    nothing = decide.sync_detailed(client=client, body=models.DecideRequest(placement="gen-py-nowhere", user="gen-py-ben"))
    assert nothing.status_code == 204 and nothing.parsed is None, nothing


def push():
    request = models.PushRequest(to=models.PushTo(users=["gen-py-ben"]), body={"offer": 1})
    accepted = send_push.sync_detailed(client=client, body=request)
    assert accepted.status_code == 202, accepted
    assert get_push.sync(accepted.parsed.push, client=client).push == accepted.parsed.push


def refusals():
    problem = get_user.sync("gen-py-nobody", client=client)
    assert isinstance(problem, models.Problem) and problem.code is models.ErrorCode.NOT_FOUND, problem
    stranger = AuthenticatedClient(base_url=os.environ["TIDINGS_URL"], token="nobody")
    problem = get_user.sync("gen-py-ada", client=stranger)
    assert problem.code is models.ErrorCode.UNAUTHORIZED and problem.retry is False, problem


tap.case("users are made and read", users)
tap.case("a conversation is opened", conversation)
first = tap.case("messages are sent, a retry answers with the first result", sends)
tap.case("history is read by its cursors both ways, each entry once", lambda: reads(first))
tap.case("a popup is made, decided and reported on", popup)
tap.case("a push is accepted, its state is read", push)
tap.case("a refusal is a problem with its code", refusals)
tap.end()
