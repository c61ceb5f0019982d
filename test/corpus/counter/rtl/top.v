`include "width.vh"
module top #(parameter W = `WIDTH) (input clk, input rst, output [W-1:0] q);
  counter #(.W(W)) c (.clk(clk), .rst(rst), .en(1'b1), .q(q));
endmodule
