package house

type pair struct{ a, b int }

func unusedwrite(ps []pair) {
	for _, p := range ps {
		p.a = 1
	}
}
