package cgroup

import "testing"

func TestReaper(t *testing.T) {
	if got := rehost(t, nil, "reap", "look"); got != "0 wrong, 0 zombies" {
		t.Errorf("%s", got)
	}
	if got := rehost(t, nil, "reap", "steal"); got != "1 wrong, 0 zombies" {
		t.Errorf("control: taking every zombie cost no leader its status: %s", got)
	}
}

func TestEscapeIsSeen(t *testing.T) {
	if got := rehost(t, nil, "escape"); got != "1 escaped 1" {
		t.Errorf("%s", got)
	}
}
