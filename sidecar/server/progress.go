package server

import (
	"context"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/eda-sidecar/eda-sidecar/sidecar/job"
)

const (
	progressEvery = 500 * time.Millisecond // at most two messages a second
	progressPulse = 10 * time.Second       // at least one
)

// progress tells a caller who gave a token what its job does.
type progress struct {
	session *mcp.ServerSession
	token   any // nil: nobody wants to know

	count float64 // of messages; it strictly grows
	state job.State
	at    time.Time // of the last message
}

func newProgress(req *mcp.CallToolRequest) progress {
	return progress{session: req.Session, token: req.Params.GetProgressToken()}
}

// send tells of a new phase, and now and then that the job lives. ctx is the call's: only by it does the SDK know to which
// request a notification belongs.
func (p *progress) send(ctx context.Context, st job.Status) {
	if p.token == nil || st.State == p.state && time.Since(p.at) < progressPulse {
		return
	}
	p.count, p.state, p.at = p.count+1, st.State, time.Now()
	_ = p.session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: p.token, Message: line(st.Message, lineInline/5), Progress: p.count}) // a caller that is gone hears none
}
