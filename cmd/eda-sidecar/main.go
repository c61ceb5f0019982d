package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/eda-sidecar/eda-sidecar/cgroup"
)

func main() {
	cgroup.Child() // this binary is also the probe and the shim of its own groups; then it does not return
	if err := cgroup.SecureProcess(); err != nil {
		fmt.Fprintln(os.Stderr, "eda-sidecar: cannot start:", err)
		os.Exit(exitInternal)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	err := newRoot().ExecuteContext(ctx)
	stop()
	if err != nil {
		printError(os.Stderr, err)
	}
	os.Exit(exitOfError(err))
}
