// What an app's server does, by a client that was generated: nothing here knows a path or a field's name on the wire.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	tidings "example.org/app/tidings"
)

var cases, failures int

func report(name string, passed bool, why any) bool {
	cases++
	word := "ok"
	if !passed {
		word = "not ok"
		failures++
	}
	fmt.Printf("%s %d - %s\n", word, cases, name)
	if !passed {
		fmt.Printf("# %v\n", why)
	}
	return passed
}

func some[T any](value T) *T { return &value }

func main() {
	fmt.Println("TAP version 13")
	fmt.Printf("# client: openapi-generator %s (go)\n", os.Getenv("GENERATOR"))
	configuration := tidings.NewConfiguration()
	configuration.Servers = tidings.ServerConfigurations{{URL: os.Getenv("TIDINGS_URL")}}
	client := tidings.NewAPIClient(configuration)
	app := context.WithValue(context.Background(), tidings.ContextAccessToken, os.Getenv("TIDINGS_API_KEY"))

	ada := tidings.NewUserUpsert("gen-go-ada")
	ada.SetName("Ada")
	ada.SetAttributes(map[string]any{"plan": "gold"})
	users := tidings.NewUsersUpsert([]tidings.UserUpsert{*ada, *tidings.NewUserUpsert("gen-go-ben")})
	made, _, err := client.UsersAPI.UpsertUsers(app).UsersUpsert(*users).Execute()
	report("users are made", err == nil && made.Created == 2, err)
	card, _, err := client.UsersAPI.GetUser(app, "gen-go-ada").Execute()
	report("a card is read", err == nil && card.GetName() == "Ada" && card.GetAttributes()["plan"] == "gold", err)

	group := tidings.NewCreateConversation(tidings.CONVERSATIONKIND_GROUP)
	group.SetId("gen-go-house")
	group.SetOwner("gen-go-ada")
	group.SetMembers([]string{"gen-go-ben"})
	opened, answer, err := client.ConversationsAPI.CreateConversation(app).CreateConversation(*group).Execute()
	report("a conversation is opened", err == nil && answer.StatusCode == 201 && opened.MemberCount == 2, err)

	var first int64
	for n := range 7 {
		send := tidings.NewSendRequest(map[string]any{"text": n})
		send.SetConversation("gen-go-house")
		send.SetFrom("gen-go-ada")
		send.SetClientMsgId(fmt.Sprintf("m%d", n))
		receipt, _, err := client.MessagesAPI.Send(app).SendRequest(*send).Execute()
		if err != nil {
			report("messages are sent", false, err)
			break
		}
		if n == 0 {
			first = receipt.Seq
		}
		if n == 6 {
			report("messages are sent", receipt.Seq == first+6, receipt)
			again, _, err := client.MessagesAPI.Send(app).SendRequest(*send).Execute()
			report("a retry answers with the first result", err == nil && again.GetDuplicate() && again.Seq == receipt.Seq, err)
		}
	}
	batch := tidings.NewSendBatch([]tidings.SendRequest{{Conversation: *tidings.NewNullableString(some("gen-go-house")), Body: "text"}, {Conversation: *tidings.NewNullableString(some("gen-go-nowhere")), Body: 1}})
	results, _, err := client.MessagesAPI.SendBatch(app).SendBatch(*batch).Execute()
	report("a batch has a result for each", err == nil && len(results.Results) == 2 && results.Results[0].SendReceipt != nil && results.Results[1].SendReceipt == nil, err)

	var seen []int64
	page, _, err := client.MessagesAPI.ListMessages(app, "gen-go-house").FromSeq(first).Limit(3).Execute()
	for err == nil {
		for _, entry := range page.Entries {
			seen = append(seen, entry.Seq)
		}
		if page.GetNext() == "" {
			break
		}
		page, _, err = client.MessagesAPI.ListMessages(app, "gen-go-house").Cursor(page.GetNext()).Limit(3).Execute()
	}
	whole := err == nil && len(seen) == 8
	for at, seq := range seen {
		whole = whole && seq == first+int64(at)
	}
	report("history is read by its cursors, each entry once", whole, fmt.Sprint(seen, err))

	content := tidings.NewPopupContent()
	content.SetTitle("Hello")
	dismiss := tidings.NewPopupActionOneOf("dismiss")
	content.SetButtons([]tidings.PopupButton{*tidings.NewPopupButton("no", "No", tidings.PopupActionOneOfAsPopupAction(dismiss))})
	popup := tidings.NewPopupSpec([]string{"gen-go"}, []tidings.PopupVariant{*tidings.NewPopupVariant("a", *content)})
	popup.SetState(tidings.POPUPSTATE_LIVE)
	kept, _, err := client.PopupsAPI.PutPopup(app, "gen-go").PopupSpec(*popup).TidingsAuthor("interop").Execute()
	report("a popup is made", err == nil && kept.GetUpdatedBy() == "interop", err)
	question := tidings.NewDecideRequest("gen-go")
	question.SetUser("gen-go-ben")
	decision, _, err := client.PopupsAPI.Decide(app).DecideRequest(*question).Execute()
	if report("a popup is decided", err == nil && decision.Popup == "gen-go" && decision.Content.GetTitle() == "Hello", err) {
		click := tidings.NewPopupEvent("gen-go-1", tidings.POPUPEVENTKIND_CLICK)
		click.SetDecision(decision.Decision)
		taken, _, err := client.PopupsAPI.ReportEvents(app).PopupEvents(*tidings.NewPopupEvents([]tidings.PopupEvent{*click})).Execute()
		report("what became of it is reported", err == nil && taken.Accepted == 1, err)
	}
	elsewhere := tidings.NewDecideRequest("gen-go-nowhere")
	elsewhere.SetUser("gen-go-ben")
	nothing, answer, err := client.PopupsAPI.Decide(app).DecideRequest(*elsewhere).Execute()
	report("where none is due there is none", err == nil && answer.StatusCode == 204 && (nothing == nil || nothing.Popup == ""), err)

	to := tidings.NewPushTo()
	to.SetUsers([]string{"gen-go-ben"})
	pushed, answer, err := client.PushAPI.SendPush(app).PushRequest(*tidings.NewPushRequest(*to, map[string]any{"offer": 1})).Execute()
	report("a push is accepted", err == nil && answer.StatusCode == 202 && pushed.PushAccepted != nil, err)
	if err == nil && pushed.PushAccepted != nil {
		status, _, err := client.PushAPI.GetPush(app, pushed.PushAccepted.Push).Execute()
		report("its state is read", err == nil && status.Push == pushed.PushAccepted.Push, err)
	}

	_, answer, err = client.UsersAPI.GetUser(app, "gen-go-nobody").Execute()
	var refused *tidings.GenericOpenAPIError
	if report("a refusal is an error", err != nil && errors.As(err, &refused) && answer.StatusCode == 404, err) {
		problem, is := refused.Model().(tidings.Problem)
		report("its code is read", is && problem.Code == tidings.ERRORCODE_NOT_FOUND, refused.Model())
	}
	stranger := context.WithValue(context.Background(), tidings.ContextAccessToken, "nobody")
	_, answer, err = client.UsersAPI.GetUser(stranger, "gen-go-ada").Execute()
	report("a wrong key is refused", err != nil && answer != nil && answer.StatusCode == 401, err)

	fmt.Printf("1..%d\n", cases)
	if failures > 0 {
		os.Exit(1)
	}
}
