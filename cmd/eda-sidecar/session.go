package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/eda-sidecar/eda-sidecar/sidecar"
	"github.com/eda-sidecar/eda-sidecar/sidecar/job"
	"github.com/eda-sidecar/eda-sidecar/sidecar/ledger"
	"github.com/eda-sidecar/eda-sidecar/sidecar/session"
)

// sessionAnswer is the answer of the calls about sessions: they run no program.
type sessionAnswer struct {
	Code     job.Code      `json:"code"`
	Sessions []sessionView `json:"sessions"`
}

type sessionView struct {
	ID      string         `json:"session_id"`
	Name    string         `json:"name"`
	Version int64          `json:"session_version"`
	State   *session.State `json:"state,omitempty"`
}

// sessionCalls are those calls, by name. Each takes one argument at most.
func sessionCalls() map[string]struct {
	argument, help string
	do             func(*cobra.Command, *sidecar.Sidecar, string) ([]ledger.Session, error)
} {
	return map[string]struct {
		argument, help string
		do             func(*cobra.Command, *sidecar.Sidecar, string) ([]ledger.Session, error)
	}{
		"session_open": {"name", "make a session of this name, or find it", func(c *cobra.Command, s *sidecar.Sidecar, name string) ([]ledger.Session, error) {
			row, err := s.Runner.OpenSession(c.Context(), principal, name)
			return []ledger.Session{row}, err
		}},
		"session_show": {"session_id", "show one session, or all", func(c *cobra.Command, s *sidecar.Sidecar, id string) ([]ledger.Session, error) {
			if id == "" {
				return s.Ledger.Sessions(c.Context(), principal, "", 1000)
			}
			row, err := s.Runner.Session(c.Context(), principal, id)
			return []ledger.Session{row}, err
		}},
		"session_close": {"session_id", "destroy a session for good", func(c *cobra.Command, s *sidecar.Sidecar, id string) ([]ledger.Session, error) {
			return nil, s.Runner.CloseSession(c.Context(), principal, id)
		}},
	}
}

// callSession answers one call about sessions.
func callSession(c *cobra.Command, flags *sidecar.Flags, tool string, raw map[string]json.RawMessage, asJSON bool) error {
	call := sessionCalls()[tool]
	value := ""
	for name, text := range raw {
		if name != call.argument || json.Unmarshal(text, &value) != nil || value == "" || len(value) > 128 {
			return fmt.Errorf("%s: want %s=TEXT of at most 128 bytes, got %s", tool, call.argument, name)
		}
	}
	if value == "" && tool != "session_show" {
		return fmt.Errorf("%s: %s is missing", tool, call.argument)
	}
	s, _, err := open(c, flags)
	if err != nil {
		return err
	}
	rows, err := call.do(c, s, value)
	if err = errors.Join(err, s.Close()); err != nil {
		return err
	}
	answer := sessionAnswer{Code: job.OK, Sessions: []sessionView{}}
	var text strings.Builder
	for _, row := range rows {
		view := sessionView{ID: row.ID, Name: row.Name, Version: row.Generation}
		if value != "" {
			view.State = &row.State
		}
		answer.Sessions = append(answer.Sessions, view)
		fmt.Fprintf(&text, "%s %s at version %d, %d artifacts\n", row.ID, printable(row.Name), row.Generation, len(row.State.Artifacts))
	}
	if asJSON {
		return printJSON(c.OutOrStdout(), answer)
	}
	_, err = io.WriteString(c.OutOrStdout(), text.String())
	return err
}
