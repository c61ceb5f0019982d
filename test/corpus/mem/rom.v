module rom;
  reg [7:0] m [0:3];
  integer i;
  initial begin
    $readmemh("mem/init.hex", m);
    for (i = 0; i < 4; i = i + 1) $display("%h", m[i]);
  end
endmodule
