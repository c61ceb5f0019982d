package cgroup

import (
	"context"
	"testing"
)

func TestOpenStart(t *testing.T) {
	ctx := context.Background()
	p, err := Open(ctx, Options{Workspace: t.TempDir(), NoReaper: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v", p.Capabilities())
	g, err := p.Create(ctx, "job", 0, Limits{})
	if err != nil {
		t.Fatal(err)
	}
	pr, err := g.Start(ctx, Command{Path: "/bin/sh", Args: []string{"sh", "-c", "id; ls -l /proc/self/fd; env; sleep 100 & exit 3"}, Dir: "/", Env: BaseEnv("/tmp/x", "/bin"), Sandbox: Sandbox{UID: -1, GID: -1}, Linger: -1})
	if err != nil {
		t.Fatal(err)
	}
	exit, err := pr.Wait(ctx)
	t.Logf("%+v %v", exit, err)
	d, err := g.Kill(ctx)
	t.Logf("%+v %v", d, err)
	e, err := g.WaitEmpty(ctx)
	t.Logf("%+v %v", e, err)
	t.Logf("%s", pr.Output().Head)
	u, err := g.Usage()
	t.Logf("%+v %v", u, err)
	g.Remove(e)
	t.Log(p.Close(ctx))
}
